// Draws a report from the JSON in #data. Charts: drag to zoom, double-click to see all, click a name to hide a line.
"use strict";
(() => {
  const report = JSON.parse(document.getElementById("data").textContent);
  const COLOURS = ["#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e", "#c2255c", "#1864ab", "#a67c00", "#495057", "#d6336c", "#087f5b"];
  const DARK_COLOURS = ["#4cc3d9", "#ff922b", "#b197fc", "#69db7c", "#f783ac", "#74c0fc", "#ffd43b", "#adb5bd", "#faa2c1", "#63e6be"];
  const isDark = matchMedia("(prefers-color-scheme: dark)");
  const several = report.runs.length > 1;

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const named = (run, text) => (several ? `${run.name}: ${text}` : text);
  const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-");

  // The lines of a chart of all runs, over all their steps.
  function mergeLines(charts) {
    const lines = charts.flatMap(({ run, chart }) => chart.lines.map((line) => ({ ...line, name: named(run, line.name) })));
    const steps = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const rows = new Map(steps.map((step, row) => [step, row]));
    const values = lines.map((line) => {
      const column = new Array(steps.length).fill(null);
      line.x.forEach((step, i) => { column[rows.get(step)] = line.y[i]; });
      return column;
    });
    return { names: lines.map((line) => line.name), data: [steps, ...values] };
  }

  function format(value) {
    if (value == null) return "";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
    return size >= 100 ? value.toFixed(0) : value.toPrecision(3);
  }

  // Vertical lines where phases begin and runs restart, with their labels where there is room.
  const marksPlugin = (marks, labelled) => ({
    hooks: {
      draw: (plot) => {
        const { ctx, bbox } = plot;
        ctx.save();
        ctx.strokeStyle = style("--soft");
        ctx.setLineDash([4, 4]);
        ctx.fillStyle = style("--soft");
        ctx.font = `${11 * devicePixelRatio}px sans-serif`;
        for (const mark of marks) {
          const x = Math.round(plot.valToPos(mark.x, "x", true));
          if (x < bbox.left || x > bbox.left + bbox.width) continue;
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
          if (!labelled) continue;
          const gap = 4 * devicePixelRatio;
          const fits = x + gap + ctx.measureText(mark.label).width < bbox.left + bbox.width;
          ctx.textAlign = fits ? "left" : "right";
          ctx.fillText(mark.label, fits ? x + gap : x - gap, bbox.top + 3 * gap);
        }
        ctx.restore();
      },
    },
  });

  function drawChart(card, charts, marks) {
    const { names, data } = mergeLines(charts);
    const area = element("div");
    card.append(area);
    const { chart } = charts[0];
    const overSteps = chart.x_name === "";
    let logarithmic = chart.is_logarithmic;
    let plot = null;
    const draw = () => {
      plot?.destroy();
      const colours = isDark.matches ? DARK_COLOURS : COLOURS;
      const axis = { stroke: style("--soft"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
      const positive = data.slice(1).every((column) => column.every((y) => y == null || y > 0));
      plot = new uPlot({
        width: Math.max(area.clientWidth, 240),
        height: 220,
        cursor: { ...(overSteps ? { sync: { key: "steps" } } : {}), drag: { x: true, y: false } },
        scales: { x: { time: false }, y: { distr: logarithmic && positive ? 3 : 1 } },
        axes: [{ ...axis }, { ...axis, size: 64, values: (_, ticks) => ticks.map(format) }],
        series: [
          { label: overSteps ? "step" : chart.x_name, value: (_, x) => (x == null ? "--" : overSteps ? x : format(x)) },
          ...names.map((label, i) => ({
            label, stroke: colours[i % colours.length], width: 1.5, spanGaps: true, value: (_, y) => format(y),
            points: { show: data[0].length < 40 },
          })),
        ],
        plugins: [overSteps ? marksPlugin(marks, false) : marksPlugin(chart.marks, true)],
      }, data, area);
    };
    const button = element("button", { type: "button", "aria-pressed": String(logarithmic) }, "log");
    button.addEventListener("click", () => {
      logarithmic = !logarithmic;
      button.setAttribute("aria-pressed", String(logarithmic));
      draw();
    });
    card.firstChild.append(button);
    draw();
    isDark.addEventListener("change", draw);
    new ResizeObserver(() => plot.setSize({ width: Math.max(area.clientWidth, 240), height: 220 })).observe(area);
  }

  function section(title, ...children) {
    return element("section", { id: slug(title) }, element("h2", {}, title), ...children);
  }

  function chartSections() {
    const groups = new Map();
    for (const run of report.runs) {
      for (const chart of run.charts) {
        if (!groups.has(chart.group)) groups.set(chart.group, new Map());
        const charts = groups.get(chart.group);
        if (!charts.has(chart.id)) charts.set(chart.id, []);
        charts.get(chart.id).push({ run, chart });
      }
    }
    const later = [];
    const sections = [...groups].map(([group, charts]) => {
      const cards = [...charts.values()].map((ofRuns) => {
        const card = element("div", { class: "card" },
          element("div", { class: "title" }, element("h3", {}, ofRuns[0].chart.title)));
        later.push(() => drawChart(card, ofRuns, several ? [] : report.runs[0].marks));
        return card;
      });
      return section(group, element("div", { class: "charts" }, ...cards));
    });
    return { sections, drawAll: () => later.forEach((draw) => draw()) };
  }

  function gallery(run, { title, pictures }) {
    const last = pictures.length - 1;
    const image = element("img", { src: pictures[last][1], alt: `${title}, step ${pictures[last][0]}` });
    const label = element("span", { class: "soft" }, `step ${pictures[last][0]}`);
    const slider = element("input", { type: "range", min: "0", max: String(last), value: String(last), "aria-label": `${title}: step` });
    slider.addEventListener("input", () => {
      const [step, source] = pictures[Number(slider.value)];
      image.src = source;
      image.alt = `${title}, step ${step}`;
      label.textContent = `step ${step}`;
    });
    return element("div", { class: "card" }, element("div", { class: "title" }, element("h3", {}, named(run, title)), label),
      ...(last > 0 ? [slider] : []), image);
  }

  function table(run, { title, head, rows }) {
    const cell = (text, i) => element("td", i > 0 && /^[$<+-]?[\d.,]+ ?%?$/.test(text) ? { class: "number" } : {}, text);
    return element("div", { class: "card scroll" }, element("h3", {}, named(run, title)),
      element("table", {}, element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
        element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell))))));
  }

  function facts(run) {
    const made = run.facts.map(([label, value]) =>
      element("div", { class: "fact" }, element("span", { class: "soft" }, label), element("b", {}, value)));
    const remarks = run.remarks.map((text) => element("p", { class: "remark" }, text));
    return [...(several ? [element("h3", {}, run.name)] : []), element("div", { class: "facts" }, ...made), ...remarks];
  }

  const all = (key, make) => report.runs.flatMap((run) => run[key].map((one) => make(run, one)));
  const { sections, drawAll } = chartSections();
  const pictures = all("galleries", gallery);
  const figures = all("pictures", (run, [title, source]) =>
    element("div", { class: "card" }, element("h3", {}, named(run, title)), element("img", { src: source, alt: title })));
  const tables = all("tables", table);
  const marks = all("marks", (run, mark) => element("li", {}, `${named(run, `step ${mark.x}`)}: ${mark.label}`));
  const texts = all("texts", (run, [title, text]) =>
    element("details", {}, element("summary", {}, named(run, title)), element("pre", {}, text)));
  const parts = [
    section("Overview", ...report.runs.flatMap(facts)),
    ...sections,
    ...(pictures.length ? [section("Pictures", element("div", { class: "charts" }, ...pictures))] : []),
    ...(figures.length ? [section("Figures", element("div", { class: "charts" }, ...figures))] : []),
    ...(tables.length ? [section("Tables", element("div", { class: "tables" }, ...tables))] : []),
    ...(marks.length ? [section("Events", element("ul", {}, ...marks))] : []),
    ...(texts.length ? [section("Configuration", ...texts)] : []),
  ];
  const links = parts.map((part) => element("a", { href: `#${part.id}` }, part.firstChild.textContent));
  document.getElementById("head").append(element("h1", {}, report.title), element("div", { class: "soft" }, report.made_by),
    element("nav", { "aria-label": "Sections" }, ...links));
  document.getElementById("content").replaceChildren(...parts);
  drawAll();
})();
