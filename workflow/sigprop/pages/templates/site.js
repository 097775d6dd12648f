"use strict";

// Tables whose headings carry data-sort: a button in each heading sorts by data-value or text.
for (const table of document.querySelectorAll("table:has(th[data-sort])")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    if (!heading.dataset.sort) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const compare = heading.dataset.sort === "number"
        ? (a, b) => Number(key(a)) - Number(key(b))
        : (a, b) => key(a).localeCompare(key(b), "en");
      body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * compare(a, b)));
    });
  });
}

// Filters of the claims: a verdict, a chapter, words; `#verdict=...` in the address sets the first.
for (const form of document.querySelectorAll("form[data-filters]")) {
  const rows = [...document.getElementById(form.dataset.filters).tBodies[0].rows];
  const apply = () => {
    const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const keep =
        [form.elements.verdict.value || row.dataset.verdict].includes(row.dataset.verdict) &&
        [form.elements.chapter.value || row.dataset.chapter].includes(row.dataset.chapter) &&
        words.every((word) => text.includes(word));
      row.hidden = !keep;
      shown += keep;
    }
    form.querySelector("[data-shown]").textContent = `${shown} of ${rows.length} claims`;
  };
  const fromAddress = () => {
    const wanted = new URLSearchParams(location.hash.slice(1)).get("verdict");
    if (wanted) form.elements.verdict.value = wanted;
    apply();
  };
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", fromAddress);
  fromAddress();
}

// The picture at full size, to be scrolled, and back.
for (const button of document.querySelectorAll("button[data-zoom]")) {
  const picture = document.getElementById(button.dataset.zoom);
  const toggle = () => {
    const full = picture.classList.toggle("full");
    button.setAttribute("aria-pressed", String(full));
  };
  button.hidden = false;
  button.addEventListener("click", toggle);
  picture.addEventListener("dblclick", toggle);
}

// The rule graph: what the rule in focus needs and what needs it stand out.
for (const graph of document.querySelectorAll("svg[data-graph]")) {
  const edges = [...graph.querySelectorAll("path")];
  const nodes = [...graph.querySelectorAll("a")];
  const follow = (name, start, end) => {
    const found = new Set([name]);
    for (const at of found) {
      for (const edge of edges) if (edge.dataset[start] === at) found.add(edge.dataset[end]);
    }
    return found;
  };
  const show = (name) => {
    const above = follow(name, "to", "from");
    const below = follow(name, "from", "to");
    for (const node of nodes) {
      node.classList.toggle("dim", !above.has(node.dataset.rule) && !below.has(node.dataset.rule));
    }
    for (const { classList, dataset } of edges) {
      const lit = (above.has(dataset.from) && above.has(dataset.to)) ||
        (below.has(dataset.from) && below.has(dataset.to));
      classList.toggle("lit", lit);
      classList.toggle("dim", !lit);
    }
  };
  const clear = () => [...nodes, ...edges].forEach((one) => one.classList.remove("dim", "lit"));
  for (const node of nodes) {
    node.addEventListener("pointerenter", () => show(node.dataset.rule));
    node.addEventListener("pointerleave", clear);
    node.addEventListener("focus", () => show(node.dataset.rule));
    node.addEventListener("blur", clear);
  }
}
