// Tables that sort by any column, and that become lists of labelled values on a narrow screen.
import { $, element } from "./dom.js";

// A column is { label, value(item), show(item)?, number?, title?, kind(item)? }: value() is what the column sorts by,
// show() returns text or an element, and kind() a class.
export class Table {
  constructor(id, columns, keyOf, sorted = 0) {
    this.table = $(id);
    this.columns = columns;
    this.keyOf = keyOf;
    this.rows = new Map();
    this.items = [];
    this.sorted = { column: sorted, down: false };
    this.buttons = [];
    const head = this.table.createTHead().insertRow();
    columns.forEach((column, index) => {
      const cell = element("th", undefined, column.number ? "n" : "");
      const button = element("button", column.label);
      button.type = "button";
      button.title = (column.title ? column.title + "\n" : "") + "Sort by this column";
      button.addEventListener("click", () => this.sortBy(index));
      cell.append(button);
      head.append(cell);
      this.buttons.push(cell);
    });
    this.body = this.table.createTBody();
    this.choice = this.makeChoice();
    this.mark();
  }

  // Narrow screens have no heads of columns, so there is a list of columns to sort by.
  makeChoice() {
    const choice = element("select", undefined, "sort");
    choice.setAttribute("aria-label", "Sort by");
    this.columns.forEach((column, index) => {
      const option = element("option", "by " + column.label);
      option.value = String(index);
      choice.append(option);
    });
    choice.addEventListener("change", () => this.sortBy(Number(choice.value)));
    this.table.closest("section").querySelector("h2").append(choice);
    return choice;
  }

  sortBy(column) {
    const same = this.sorted.column === column;
    this.sorted = { column, down: same ? !this.sorted.down : Boolean(this.columns[column].number) };
    this.mark();
    this.show(this.items);
  }

  mark() {
    this.choice.value = String(this.sorted.column);
    this.buttons.forEach((cell, index) => {
      const sorted = index === this.sorted.column ? (this.sorted.down ? "descending" : "ascending") : "none";
      cell.setAttribute("aria-sort", sorted);
    });
  }

  // Show items.  The row of an item is kept as long as the item is there, and with it focus and selection.
  show(items) {
    this.items = items;
    const { column, down } = this.sorted;
    const value = this.columns[column].value, sign = down ? -1 : 1;
    const ordered = [...items].sort((a, b) => sign * compare(value(a), value(b)) || compare(this.keyOf(a), this.keyOf(b)));
    const present = new Set();
    ordered.forEach((item, index) => {
      const key = this.keyOf(item);
      present.add(key);
      let row = this.rows.get(key);
      if (!row) {
        row = element("tr");
        for (const each of this.columns) {
          const cell = element("td");
          cell.dataset.label = each.label;
          row.append(cell);
        }
        this.rows.set(key, row);
      }
      this.columns.forEach((each, at) => fill(row.cells[at], each, item));
      if (this.body.rows[index] !== row) this.body.insertBefore(row, this.body.rows[index] || null);
    });
    for (const [key, row] of this.rows) {
      if (!present.has(key)) { row.remove(); this.rows.delete(key); }
    }
    this.table.hidden = !items.length;
    this.choice.hidden = items.length < 2;
    const empty = this.table.closest("section").querySelector(".empty");
    if (empty) empty.hidden = items.length > 0;
  }
}

function fill(cell, column, item) {
  const shown = column.show ? column.show(item) : column.value(item);
  const kind = [column.number ? "n" : "", column.kind ? column.kind(item) : ""].filter(Boolean).join(" ");
  if (cell.className !== kind) cell.className = kind;
  if (shown instanceof Node) {
    if (!cell.firstChild || !cell.firstChild.isEqualNode(shown)) cell.replaceChildren(shown);
    return;
  }
  if (cell.textContent !== shown) cell.textContent = shown;
  if (!column.number && cell.title !== shown) cell.title = shown;
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : 1;
}
