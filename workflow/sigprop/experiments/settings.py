"""What every block of settings obeys, and how a wrong one is reported."""

from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sigprop.artifacts.errors import UserError, nearest

T = TypeVar("T")


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


# A setting that may be one value or a list; several lists are crossed.
Factor = Annotated[list[T], Field(min_length=1), BeforeValidator(_as_list)]


class SettingsBlock(BaseModel):
    """A block of settings: frozen, unknown keys rejected, numbers finite and never coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class Experiment(SettingsBlock):
    """The settings of one table. A kind of experiment is a class derived from this one.

    A table is made by a simulation and, where there is any, has theory in a table of its own. Both
    are functions `run(settings, context)` of a module in the kind's folder.

    Class attributes:
        FACTORS: factor column -> dtype; "Int64" and "float64?" may be null.
        QUANTITIES: value of the `quantity` column -> unit, "1" where it has none.
        TRAINS: the simulation is a training, which keeps checkpoints.
        THEORY_READS_SIMULATION: theory is evaluated at sums that the simulation measured.
        CLOSED_FORM: what stands for the simulation is itself theory.
        THEORY: there is theory, in a table of its own.
    """

    experiment: str

    FACTORS: ClassVar[dict[str, str]]
    QUANTITIES: ClassVar[dict[str, str]]
    TRAINS: ClassVar[bool] = False
    THEORY_READS_SIMULATION: ClassVar[bool] = False
    CLOSED_FORM: ClassVar[bool] = False
    THEORY: ClassVar[bool] = True

    @property
    def simulation(self) -> str:
        """Module that makes the table."""
        return self._module("theory" if self.CLOSED_FORM else "simulation")

    @property
    def theory(self) -> str | None:
        """Module that makes the table of theory; None where there is none."""
        return self._module("theory") if self.THEORY else None

    @property
    def design(self) -> str | None:
        """Module in which theory chooses what is simulated; None where it chooses nothing.

        Its `run(settings)` runs before the simulation, which never imports it.
        """
        return None

    @property
    def n_runs(self) -> int:
        """Of how many runs the table is made, each of which may be a job of its own."""
        return 1

    def _module(self, name: str) -> str:
        return f"{type(self).__module__.rpartition('.')[0]}.{name}"


def _path(location: tuple[int | str, ...], model: type[BaseModel], root: str = "") -> str:
    text = root
    block: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif block is not None and "[" not in part and "(" not in part:
            # Anything else is pydantic's own tag of a member of a union.
            text += f".{part}" if text else part
            found = block.model_fields.get(part)
            # What is not a field is a name that the user gave, a key of a mapping to such blocks.
            block = _block_in(found.annotation) if found else block
    return text


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Names of the settings that the block at `location` knows."""
    current: type[BaseModel] | None = model
    for part in location:
        if current is None or not isinstance(part, str):
            continue
        found = current.model_fields.get(part)
        if found is not None:
            current = _block_in(found.annotation)
    return list(current.model_fields) if current is not None else []


def _block_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _block_in(argument)
        if found is not None:
            return found
    return None


def _refuse(error: ValidationError, model: type[BaseModel], root: str) -> NoReturn:
    """UserError for the first thing wrong: key path, value, what is allowed, nearest key."""
    details = error.errors(include_url=False)
    # Where a setting may be a number or a word, the word's complaint says most.
    first = next((d for d in details if d["type"] == "extra_forbidden"), details[0])
    location, value, context = first["loc"], first["input"], first.get("ctx", {})
    where = _path(location, model, root) or "config"
    shown = "nan" if value != value else repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        raise UserError(
            f"{where}: unknown key{nearest(str(location[-1]), known)}; allowed: {', '.join(known)}"
        )
    if first["type"] == "missing":
        raise UserError(f"{where}: missing; it has no default, so give it a value")
    if first["type"] == "value_error":
        raise UserError(f"{where}: {context['error']}")
    if first["type"] == "literal_error":
        allowed = str(context["expected"])
        words = [word.strip("'") for word in allowed.replace(" or ", ", ").split(", ")]
        hint = nearest(str(value), words)
        raise UserError(f"{where}: {shown} is not allowed; use {allowed}{hint}")
    rest = [d["msg"] for d in details[1:] if d["loc"][: len(location) - 1] == location[:-1]]
    messages = [text[0].lower() + text[1:] for text in (first["msg"], *rest)]
    wanted = " or ".join(dict.fromkeys(messages[:2]))
    raise UserError(f"{where}: {shown} is not allowed; {wanted}")


def parse(model: type[Any], record: Any, root: str = "") -> Any:
    """Validate `record` into `model`; UserError with one line when it does not fit."""
    try:
        return model.model_validate(record)
    except ValidationError as error:
        _refuse(error, model, root)


PRESETS = ("smoke", "laptop", "paper")
Preset = Literal["smoke", "laptop", "paper"]
