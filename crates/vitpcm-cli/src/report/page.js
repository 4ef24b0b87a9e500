"use strict";
// Sorts a table by a column when its heading is pressed, and filters its rows by a word. Without scripts the page shows the same.
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const body = table.tBodies[0], rows = [...body.rows];
  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
  };
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      rows.sort((a, b) => {
        const x = key(a, column), y = key(b, column);
        return sign * (typeof x === "number" ? x - y : x.localeCompare(y));
      });
      body.append(...rows);
    });
  });
  const filter = document.createElement("input");
  filter.className = "filter";
  filter.type = "search";
  filter.placeholder = "Filter: a name or a class";
  filter.setAttribute("aria-label", "Filter the images");
  table.before(filter);
  filter.addEventListener("input", () => {
    const word = filter.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(word);
  });
}
