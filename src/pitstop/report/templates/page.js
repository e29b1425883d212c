"use strict";
(function () {
  // Everything the script says; in another language only this differs.
  var SAID = {
    openAll: "Open all",
    closeAll: "Close all",
    copy: "copy",
    copied: "copied",
    selected: "selected",
    nothingGained: "nothing gained",
    noBound: "no bound on the gain: it is the whole step",
    upTo: "up to 1.00x faster",
    zoomIn: "zoom in",
    zoomOut: "zoom out",
    all: "all",
    showAll: "show all"
  };

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
    button.textContent = SAID.openAll;
    button.addEventListener("click", function () {
      var open = button.textContent === SAID.openAll;
      all.forEach(function (details) {
        details.open = open;
      });
      button.textContent = open ? SAID.closeAll : SAID.openAll;
    });
    tree.querySelector(".caption").appendChild(button);
  });

  // A page that was opened from disk may not write to the clipboard: then the text is selected.
  function copy(list, button) {
    var lines = Array.prototype.map.call(list.children, function (line) {
      return line.textContent.trim();
    });
    function select() {
      window.getSelection().selectAllChildren(list);
      button.textContent = SAID.selected;
    }
    if (!navigator.clipboard) {
      select();
      return;
    }
    navigator.clipboard.writeText(lines.join("\n")).then(function () {
      button.textContent = SAID.copied;
    }, select);
  }

  document.querySelectorAll(".finding .try").forEach(function (heading) {
    var button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = SAID.copy;
    button.addEventListener("click", function () {
      copy(heading.nextElementSibling, button);
    });
    heading.appendChild(button);
  });

  // As pitstop.doctor.estimate.combine: a part counts once, and a pool gives no more than it holds.
  function savedShare(ticked) {
    var pools = new Map();
    var headroom = 0;
    ticked.forEach(function (fix) {
      var pool = pools.get(fix.dataset.pool) || { parts: new Map(), size: 0 };
      pools.set(fix.dataset.pool, pool);
      var before = pool.parts.get(fix.dataset.part) || 0;
      pool.parts.set(fix.dataset.part, Math.max(before, Number(fix.dataset.share)));
      pool.size = Math.max(pool.size, Number(fix.dataset.poolShare));
      headroom = Math.max(headroom, Number(fix.dataset.headroom));
    });
    var share = 0;
    pools.forEach(function (pool) {
      var sum = 0;
      pool.parts.forEach(function (part) {
        sum += part;
      });
      share += Math.min(pool.size, sum);
    });
    share = Math.min(1, share);
    return share + Math.min(headroom, 1 - share);
  }

  function gainText(saved) {
    if (saved <= 0) {
      return SAID.nothingGained;
    }
    if (saved >= 1) {
      return SAID.noBound;
    }
    return SAID.upTo.replace("1.00x", (1 / (1 - saved)).toFixed(2) + "x");
  }

  document.querySelectorAll(".what-if").forEach(function (figure) {
    var boxes = Array.prototype.slice.call(figure.querySelectorAll("input"));
    var pieces = figure.querySelectorAll("svg > rect");
    function show() {
      var saved = savedShare(boxes.filter(function (box) { return box.checked; }));
      figure.querySelector("output").textContent = gainText(saved);
      [[0, 1 - saved], [1 - saved, saved]].forEach(function (span, place) {
        var piece = pieces[place];
        var label = piece.nextElementSibling;
        [piece, label && label.tagName === "svg" ? label : piece].forEach(function (drawn) {
          drawn.setAttribute("x", span[0] * 100 + "%");
          drawn.setAttribute("width", span[1] * 100 + "%");
        });
        var title = piece.querySelector("title");
        title.textContent = title.textContent.replace(/[\d.]+%/, (span[1] * 100).toFixed(1) + "%");
      });
    }
    boxes.forEach(function (box) {
      box.hidden = false;
      box.addEventListener("change", show);
    });
  });

  function timeText(us) {
    var units = [[1e6, "s"], [1e3, "ms"], [1, "us"]];
    var unit = units.find(function (one) { return us >= one[0]; }) || units[2];
    return Number((us / unit[0]).toPrecision(4)) + " " + unit[1];
  }

  // Pieces lie in shares of their window: a zoom is a wider window that begins further left.
  function zoomable(drawing) {
    var inner = drawing.querySelector("svg.zoom");
    var whole = Number(inner.dataset.us);
    var ticks = Array.prototype.slice.call(drawing.querySelectorAll(".tick"));
    var drawn = Array.prototype.map.call(inner.querySelectorAll("rect.piece, .name"), function (one) {
      var box = one.tagName === "rect" ? one : one.parentNode;
      var start = parseFloat(box.getAttribute("x")) / 100;
      return {
        element: one,
        start: start,
        share: parseFloat(box.getAttribute("width")) / 100,
        needed: one.tagName === "rect" ? 0 : (one.textContent.length + 2) * 7,
        isHidden: one.classList.contains("deep")
      };
    });
    var first = ticks.map(function (tick) { return tick.textContent; });
    var from = 0;
    var times = 1;

    // What lies outside the window, and names that do not fit, cost no layout: with hundreds of
    // modules that is most of a frame. The width is asked for before anything changes, else the
    // browser would lay everything out twice.
    function hideRest(width) {
      drawn.forEach(function (one) {
        var isOutside = one.start > from + 1 / times || one.start + one.share < from;
        var isHidden = isOutside || one.share * width * times < one.needed;
        if (isHidden !== one.isHidden) {
          one.isHidden = isHidden;
          one.element.classList.toggle("deep", isHidden);
        }
      });
    }

    function show(start, zoom) {
      var width = drawing.clientWidth || drawing.getBoundingClientRect().width;
      times = Math.min(40, Math.max(1, zoom));
      from = Math.min(1 - 1 / times, Math.max(0, start));
      inner.setAttribute("x", -from * times * 100 + "%");
      inner.setAttribute("width", times * 100 + "%");
      ticks.forEach(function (tick, place) {
        var at = from + place / Math.max(1, ticks.length - 1) / times;
        tick.textContent = times === 1 ? first[place] : timeText(at * whole);
      });
      hideRest(width);
    }

    function around(share, factor) {
      show(from + share / times - share / (times * factor), times * factor);
    }

    function pointed(event) {
      var box = drawing.getBoundingClientRect();
      return (event.clientX - box.left) / box.width;
    }

    drawing.classList.add("zoomable");
    drawing.setAttribute("tabindex", "0");
    drawing.addEventListener("wheel", function (event) {
      // Without the key the wheel scrolls the page, as everywhere.
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        around(pointed(event), event.deltaY < 0 ? 1.25 : 0.8);
      }
    }, { passive: false });
    drawing.addEventListener("click", function (event) {
      var piece = event.target.closest("rect.piece");
      if (!piece || !inner.contains(piece)) {
        return;
      }
      var share = parseFloat(piece.getAttribute("width")) / 100;
      show(parseFloat(piece.getAttribute("x")) / 100, 1 / share);
    });
    drawing.addEventListener("keydown", function (event) {
      var steps = {
        "+": [0.5, 1.5], "=": [0.5, 1.5], "-": [0.5, 1 / 1.5]
      };
      if (steps[event.key]) {
        around(steps[event.key][0], steps[event.key][1]);
      } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        show(from + (event.key === "ArrowLeft" ? -0.2 : 0.2) / times, times);
      } else if (event.key === "0" || event.key === "Escape") {
        show(0, 1);
      } else {
        return;
      }
      event.preventDefault();
    });
    var buttons = document.createElement("span");
    buttons.className = "zoom-buttons";
    [["+", SAID.zoomIn, 1.5], ["\u2212", SAID.zoomOut, 1 / 1.5], [SAID.all, SAID.showAll, 0]].forEach(function (one) {
      var button = document.createElement("button");
      button.type = "button";
      button.textContent = one[0];
      button.setAttribute("aria-label", one[1]);
      button.addEventListener("click", function () {
        if (one[2]) {
          around(0.5, one[2]);
        } else {
          show(0, 1);
        }
      });
      buttons.appendChild(button);
    });
    drawing.closest("figure").querySelector("figcaption").appendChild(buttons);
    show(0, 1);
  }

  document.querySelectorAll("svg.zoom").forEach(function (inner) {
    zoomable(inner.closest("svg.drawing"));
  });

  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (details) {
      details.open = true;
    });
  });
})();
