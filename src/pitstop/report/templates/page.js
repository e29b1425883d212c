"use strict";
(function () {
  function value(row, column) {
    var cell = row.cells[column];
    var given = cell.getAttribute("data-v");
    return given === null ? null : Number(given);
  }

  function compare(column, isNumber, direction) {
    return function (one, other) {
      if (!isNumber) {
        var a = one.cells[column].textContent.trim();
        var b = other.cells[column].textContent.trim();
        return direction * a.localeCompare(b, "en", { numeric: true });
      }
      var x = value(one, column);
      var y = value(other, column);
      if (x === null || y === null) {
        // What was not measured stands last, whichever way the rest is sorted.
        return (x === null ? 1 : 0) - (y === null ? 1 : 0);
      }
      return direction * (x - y);
    };
  }

  function sort(table, column, isNumber) {
    var headings = table.tHead.rows[0].cells;
    var before = headings[column].getAttribute("aria-sort");
    var first = isNumber ? "descending" : "ascending";
    var second = isNumber ? "ascending" : "descending";
    var order = before === first ? second : first;
    Array.prototype.forEach.call(headings, function (heading) {
      heading.removeAttribute("aria-sort");
    });
    headings[column].setAttribute("aria-sort", order);
    var body = table.tBodies[0];
    var rows = Array.prototype.slice.call(body.rows);
    rows.sort(compare(column, isNumber, order === "ascending" ? 1 : -1));
    rows.forEach(function (row) {
      body.appendChild(row);
    });
  }

  document.querySelectorAll("table.sortable").forEach(function (table) {
    Array.prototype.forEach.call(table.tHead.rows[0].cells, function (heading, column) {
      var isNumber = Array.prototype.some.call(table.tBodies[0].rows, function (row) {
        return row.cells[column].hasAttribute("data-v");
      });
      var button = document.createElement("button");
      button.type = "button";
      button.textContent = heading.textContent;
      heading.textContent = "";
      heading.appendChild(button);
      button.addEventListener("click", function () {
        sort(table, column, isNumber);
      });
    });
  });

  document.querySelectorAll(".tree").forEach(function (tree) {
    var all = tree.querySelectorAll("details");
    if (!all.length) {
      return;
    }
    var button = document.createElement("button");
    button.type = "button";
    button.className = "open-all";
    button.textContent = "Open all";
    button.addEventListener("click", function () {
      var open = button.textContent === "Open all";
      all.forEach(function (details) {
        details.open = open;
      });
      button.textContent = open ? "Close all" : "Open all";
    });
    tree.querySelector(".caption").appendChild(button);
  });

  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (details) {
      details.open = true;
    });
  });
})();
