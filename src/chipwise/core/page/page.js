"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const shown = {};
  // Named one by one: plotly's own list has a button that would send the data to a cloud.
  const buttons = [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]];

  // Colours in figures are names such as "@winner"; the theme in force gives their value.
  function painted(value, style) {
    if (typeof value === "string") {
      return /^@[a-z]+$/.test(value) ? style.getPropertyValue("--" + value.slice(1)).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => painted(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, painted(item, style)]));
    }
    return value;
  }

  // A phone shows one legend entry a line, half of the height at most, and room for few tick labels.
  function fit(data, layout) {
    const entries = data.filter((trace) => trace.showlegend !== false).length;
    layout.height = Math.max(layout.height, 44 * entries);
    layout.margin = { ...layout.margin, l: 56, r: 14 };
    layout.font = { ...layout.font, size: 11 };
    const { tickvals, ticktext } = layout.xaxis ?? {};
    if (tickvals?.length > 6) {
      const every = Math.ceil(tickvals.length / 6);
      const kept = (_, i) => i % every === 0;
      layout.xaxis = { ...layout.xaxis, tickvals: tickvals.filter(kept), ticktext: ticktext.filter(kept) };
    }
  }

  function draw(key) {
    const style = getComputedStyle(document.documentElement);
    const { data, layout } = painted(figures[key][shown[key]], style);
    const narrow = document.getElementById("plot-" + key).clientWidth < 560;
    if (narrow) fit(data, layout);
    const shownBar = narrow ? false : "hover";
    const config = { responsive: true, displaylogo: false, displayModeBar: shownBar, modeBarButtons: buttons };
    return Plotly.react("plot-" + key, data, layout, config);
  }

  for (const button of document.querySelectorAll(".views button")) {
    button.addEventListener("click", () => {
      const { plot, view } = button.dataset;
      shown[plot] = Number(view);
      for (const other of button.parentElement.children) {
        other.setAttribute("aria-pressed", String(other === button));
      }
      draw(plot);
    });
  }

  for (const head of document.querySelectorAll("table.sortable th")) {
    head.addEventListener("click", () => {
      const table = head.closest("table");
      const column = Array.from(head.parentElement.children).indexOf(head);
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
      const rows = Array.from(table.tBodies[0].rows);
      const value = (row) => row.cells[column].dataset.value ?? "";
      rows.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === ""); // what is unknown comes last either way
        const [m, n] = [Number(x), Number(y)];
        return sign * (Number.isNaN(m) || Number.isNaN(n) ? x.localeCompare(y) : m - n);
      });
      table.tBodies[0].append(...rows);
    });
  }

  const boxes = Array.from(document.querySelectorAll(".scroll"));
  const hint = () => boxes.forEach((box) => box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1));
  addEventListener("resize", hint);
  hint();

  const keys = Object.keys(figures);
  for (const key of keys) shown[key] = 0;
  const all = () => Promise.all(keys.map(draw));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  all().then(() => { document.documentElement.dataset.drawn = String(keys.length); });
})();
