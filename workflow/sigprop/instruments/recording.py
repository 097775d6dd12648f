"""Hooks that record the residual stream of any `torch.nn.Module`, and leave no trace.

A stack of L blocks carries a stream X^0, ..., X^L: X^0 enters the first block, X^l leaves the l-th.
"""

import difflib
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Blocks = dict[str, nn.Module]
_SIGNATURE = inspect.signature(nn.MultiheadAttention.forward)


def find_blocks(model: nn.Module, pattern: str | None = None) -> Blocks:
    """The blocks of `model` by name.

    Args:
        pattern: names as in `model.named_modules()`; * stands for anything but a dot. None takes
            the longest ModuleList or Sequential that holds modules of one type, at least two.

    Raises ValueError when nothing matches, or no list is the longest.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        and len(module) > 1
        and len({type(block) for block in module}) == 1
    }
    if pattern is None:
        longest = max((len(blocks) for blocks in lists.values()), default=0)
        found = [name for name, blocks in lists.items() if len(blocks) == longest]
        shown = ", ".join(repr(_join(name, "*")) for name in found)
        if not found:
            raise ValueError(
                f"blocks: {type(model).__name__} holds no list of modules of one type; name its "
                "blocks with a pattern such as 'layers.*'"
            )
        if len(found) > 1:
            raise ValueError(
                f"blocks: several lists hold {longest} modules of one type; choose from {shown}"
            )
        pattern = _join(found[0], "*")
    words = pattern.split(".")
    chosen = {
        name: module
        for name, module in modules.items()
        if len(parts := name.split(".")) == len(words)
        and all(fnmatchcase(part, word) for part, word in zip(parts, words, strict=True))
    }
    if not chosen:
        known = dict.fromkeys([_join(name, "*") for name in lists])
        known |= dict.fromkeys(re.sub(r"\b\d+\b", "*", name) for name in modules)
        close = difflib.get_close_matches(pattern, known, n=1, cutoff=0.5) or list(known)[:1]
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise ValueError(f"blocks: no module is called {pattern!r}{hint}")
    for name, module in chosen.items():
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            raise ValueError(f"blocks: {name!r} is a list of modules; did you mean '{name}.*'?")
    return chosen


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def attentions(block: nn.Module) -> dict[str, nn.MultiheadAttention]:
    """The `nn.MultiheadAttention` in a block by name; "" is the block itself."""
    return {
        name: module
        for name, module in block.named_modules()
        if isinstance(module, nn.MultiheadAttention)
    }


class Recording:
    """The stream while the model runs inside `with Recording(...) as record`.

    With `gradients` the blocks are handed copies, so that autograd sees every X^l as it was
    recorded even where a block changes its input in place, and X^0 starts a graph of its own.

    Attributes:
        names: of the blocks, in the order in which they ran.
        states: X^0 to X^L as the model holds them. places: what to call each in a message.
        calls: (block from 0, name in it, module, its arguments) of each `nn.MultiheadAttention`.
    """

    def __init__(self, blocks: Blocks, *, gradients: bool, attention: bool) -> None:
        self.names: list[str] = []
        self.states: list[Tensor] = []
        self.places: list[str] = []
        self.calls: list[tuple[int, str, nn.MultiheadAttention, dict[str, Any]]] = []
        self._blocks, self._gradients, self._attention = blocks, gradients, attention
        self._handles: list[Any] = []

    def __enter__(self) -> "Recording":
        for name, block in self._blocks.items():
            enter, leave = partial(self._enter, name), partial(self._leave, name)
            self._handles += [
                block.register_forward_pre_hook(enter, with_kwargs=True),
                block.register_forward_hook(leave),
            ]
            for path, module in attentions(block).items() if self._attention else ():
                call = partial(self._call, path)
                self._handles.append(module.register_forward_pre_hook(call, with_kwargs=True))
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for handle in self._handles:
            handle.remove()
        idle = [name for name in self._blocks if name not in self.names]
        if kind is None and idle:
            raise ValueError(f"block {idle[0]!r} did not run; choose blocks that the model calls")

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.states:
            return None
        where = f"the input of block {name!r}"
        if args:
            return (self._keep(args[0], where), *args[1:]), kwargs
        first = next(iter(kwargs), "")
        return args, kwargs | {first: self._keep(kwargs.get(first), where)}

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> Any:
        if name in self.names:
            raise ValueError(f"block {name!r} runs twice in one forward pass; choose other blocks")
        first = output[0] if isinstance(output, tuple) and output else output
        x = self._keep(first, f"the output of block {name!r}")
        self.names.append(name)
        if not isinstance(output, tuple):
            return x
        rest = (x, *output[1:])
        return type(output)(*rest) if hasattr(output, "_fields") else rest

    def _call(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        assert isinstance(module, nn.MultiheadAttention)
        given = _SIGNATURE.bind(module, *args, **kwargs).arguments
        query = given["query"]
        copy = query.detach().clone()  # the block may go on to change what its attention read
        given |= {name: copy for name in ("query", "key", "value") if given[name] is query}
        self.calls.append((len(self.names), path, module, given))

    def _keep(self, x: Any, where: str) -> Tensor:
        """Record x and return what goes on through the model."""
        if not isinstance(x, Tensor):
            raise ValueError(
                f"{where} is a {type(x).__name__}; it must be a tensor, or a tuple that starts "
                "with one"
            )
        if not x.is_floating_point() or x.ndim not in (2, 3) or not x.numel():
            raise ValueError(
                f"{where} is {str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}; the "
                "stream must be floating, (batch, n, d) or (n, d): choose other blocks"
            )
        if self.states and x.shape != self.states[0].shape:
            raise ValueError(
                f"{where} has shape {tuple(x.shape)}, {self.places[0]} has "
                f"{tuple(self.states[0].shape)}; choose blocks of one shape"
            )
        self.places.append(where)
        if not self._gradients:
            self.states.append(x.detach().clone())
            return x
        self.states.append(x if x.requires_grad else x.detach().clone().requires_grad_())
        return self.states[-1].clone()


@contextmanager
def undisturbed(
    model: nn.Module, blocks: Blocks, *, training: bool, gradients: bool
) -> Iterator[None]:
    """Run the model in a mode, with gradients for its blocks or without, and put all back.

    Attention takes its plain path inside, so that what it reads passes by the hooks.
    """
    modes = [(module, module.training) for module in model.modules()]
    flags = [(p, p.requires_grad) for block in blocks.values() for p in block.parameters()]
    buffers = [
        (module, name, buffer, None if buffer is None else buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        for module, _ in modes:  # not model.train(): some models do more in it than set the mode
            module.training = training
        torch.backends.mha.set_fastpath_enabled(False)
        for parameter, _ in flags:
            if gradients and parameter.is_floating_point():
                parameter.requires_grad_()
        with (
            torch.random.fork_rng(sorted(devices)),
            torch.inference_mode(False),
            torch.set_grad_enabled(gradients),
        ):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in modes:
            module.training = mode
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        for module, name, buffer, saved in buffers:
            module._buffers[name] = buffer
            if buffer is not None and saved is not None and not torch.equal(buffer, saved):
                with torch.no_grad():
                    buffer.copy_(saved)
