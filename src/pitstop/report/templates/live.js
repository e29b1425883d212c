"use strict";
(function () {
  var live = document.getElementById("live");
  var link = document.getElementById("link");
  var pause = Number(document.body.getAttribute("data-refresh-ms"));

  // Pieces that did not change stay as they are, so that nobody's selection or focus is lost.
  function renew(text) {
    var fresh = new DOMParser().parseFromString(text, "text/html").body;
    var wanted = Array.prototype.slice.call(fresh.children);
    var names = wanted.map(function (piece) {
      return piece.id;
    });
    Array.prototype.slice.call(live.children).forEach(function (piece) {
      if (names.indexOf(piece.id) < 0) {
        piece.remove();
      }
    });
    wanted.forEach(function (piece, place) {
      var old = live.children[place];
      if (!old || old.id !== piece.id) {
        live.insertBefore(document.adoptNode(piece), old || null);
      } else if (old.outerHTML !== piece.outerHTML) {
        old.replaceWith(document.adoptNode(piece));
      }
    });
    document.title = document.getElementById("live-head").getAttribute("data-title");
  }

  function say(text) {
    if (link.textContent !== text) {
      link.textContent = text;
    }
  }

  function ask() {
    fetch("view.html", { cache: "no-store" }).then(function (answer) {
      if (!answer.ok) {
        throw new Error(String(answer.status));
      }
      return answer.text();
    }).then(function (text) {
      renew(text);
      say("");
    }).catch(function () {
      say("Nobody serves this page any more: this is the last view.");
    }).then(function () {
      var over = document.getElementById("live-head").hasAttribute("data-over");
      if (over) {
        say("The run is over: this is the last view.");
      } else {
        window.setTimeout(ask, pause);
      }
    });
  }

  if (!document.getElementById("live-head").hasAttribute("data-over")) {
    window.setTimeout(ask, pause);
  }
})();
