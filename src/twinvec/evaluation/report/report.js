(function () {
  "use strict";
  var root = document.documentElement, tip = document.getElementById("tip");
  function zh() { return root.classList.contains("show-zh"); }
  function label() {
    root.lang = zh() ? "zh-Hans" : "en";
    document.querySelectorAll("svg[role=img]").forEach(function (svg) {
      svg.setAttribute("aria-label", svg.getAttribute(zh() ? "data-label-zh" : "data-label-en"));
    });
    var shown = document.querySelector("h1 ." + (zh() ? "zh" : "en"));
    if (shown) document.title = shown.textContent;
  }
  document.getElementById("switch").addEventListener("click", function () {
    var to = zh() ? "en" : "zh";
    root.classList.remove("show-en", "show-zh");
    root.classList.add("show-" + to);
    label();
  });
  label();

  function key(row, at) {
    var cell = row.cells[at], value = cell.getAttribute("data-v");
    if (value !== null) return parseFloat(value);
    if (cell.textContent.trim() === "–") return null;
    var own = cell.querySelector(zh() ? ".zh" : ".en");
    return (own || cell).textContent.trim();
  }
  document.querySelectorAll("table.sortable").forEach(function (table) {
    var heads = [].slice.call(table.tHead.rows[0].cells), body = table.tBodies[0];
    heads.forEach(function (head, at) {
      head.querySelector("button").addEventListener("click", function () {
        var was = head.getAttribute("aria-sort");
        var down = was === "none" ? head.classList.contains("n") : was === "ascending";
        heads.forEach(function (other) { other.setAttribute("aria-sort", "none"); });
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        var rows = [].slice.call(body.rows).map(function (row, place) { return { row: row, key: key(row, at), place: place }; });
        rows.sort(function (a, b) {
          if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.place - b.place;
          var order = typeof a.key === "number" && typeof b.key === "number" ? a.key - b.key : String(a.key).localeCompare(String(b.key));
          return (down ? -order : order) || a.place - b.place;
        });
        rows.forEach(function (entry) { body.appendChild(entry.row); });
      });
    });
  });

  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (part) { part.open = true; });
  });

  var x = -1, y = -1;
  function show(target) {
    var node = target && target.closest ? target.closest("[data-tip]") : null;
    tip.hidden = !node;
    if (!node) return;
    tip.textContent = (zh() && node.getAttribute("data-tip-zh")) || node.getAttribute("data-tip");
    tip.style.left = tip.style.top = "0";
    var box = tip.getBoundingClientRect(), left = x + 14, top = y + 14;
    if (left + box.width > root.clientWidth - 8) left = Math.max(8, root.clientWidth - box.width - 8);
    if (top + box.height > window.innerHeight - 8) top = Math.max(8, y - box.height - 10);
    tip.style.left = left + "px";
    tip.style.top = top + "px";
  }
  function follow(event) { x = event.clientX; y = event.clientY; show(event.target); }
  document.addEventListener("mousemove", follow);
  document.addEventListener("click", follow);
  // What lies under a resting pointer changes as the page moves.
  document.addEventListener("scroll", function () { if (x >= 0) show(document.elementFromPoint(x, y)); }, true);
})();
