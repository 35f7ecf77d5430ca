"use strict";
// The page's program: colours, switches, legends, the slider, tables that sort. It reads the JSON beside each figure.
(() => {
  const root = document.documentElement;
  const COLOURS = JSON.parse(document.getElementById("colours").textContent);
  const DASHES = ["solid", "dash", "dashdot", "dot", "longdash", "longdashdot"];
  const SHAPES = ["circle", "square", "diamond"];
  const CONFIG = {
    responsive: true, displaylogo: false, scrollZoom: false,
    // By name: what Plotly adds of its own may send the chart away.
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
  };
  const redraws = [];
  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name in node && name !== "list") node[name] = value;
      else node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  };
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const colour = (look) => {
    if (look < 0) return css("--dim");
    const found = COLOURS[look % COLOURS.length];
    return found === "#000000" ? css("--text") : found;
  };
  // Where colours come round again, points have another shape.
  const shape = (look) => SHAPES[Math.max(0, Math.floor(look / COLOURS.length)) % SHAPES.length];
  const dashes = ({ look, dash }) => dash || DASHES[look % DASHES.length];
  const faint = (hex, alpha) => {
    const parts = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    return `rgba(${parts.join(",")},${alpha})`;
  };
  const short = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en-US");
    return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  };

  // Light and dark: the system's choice until the button says otherwise.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let theme = "auto";
  try { theme = localStorage.getItem("tiebreak-theme") || "auto"; } catch { /* a file may have no storage */ }
  const paint = () => {
    root.dataset.theme = theme === "auto" ? (system.matches ? "dark" : "light") : theme;
    button.textContent = { auto: "◐ auto", light: "☀ light", dark: "☾ dark" }[theme];
    const said = theme === "auto" ? "as the system has them" : theme;
    button.setAttribute("aria-label", `Colours: ${said}. Press for the next choice.`);
    redraws.forEach((redraw) => redraw());
  };
  button.addEventListener("click", () => {
    theme = { auto: "light", light: "dark", dark: "auto" }[theme];
    try { localStorage.setItem("tiebreak-theme", theme); } catch { /* likewise */ }
    paint();
  });
  system.addEventListener("change", paint);

  const layout = (more) => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
    font: { color: css("--text"), family: getComputedStyle(document.body).fontFamily, size: 13 },
    margin: { l: 64, r: 14, t: 34, b: 52 }, hoverlabel: { namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--dim"), activecolor: css("--link") }, ...more,
  });

  // A scale that is linear about zero and logarithmic far from it.
  const bend = (v) => (Math.abs(v) <= 1 ? v : Math.sign(v) * (1 + Math.log10(Math.abs(v))));
  const TICKS = [];
  for (let power = 8; power >= 0; power--) TICKS.push(-(10 ** power));
  TICKS.push(0);
  for (let power = 0; power <= 8; power++) TICKS.push(10 ** power);
  const placed = (axis, values) => values.map((v) => {
    if (v === null || v === undefined) return null;
    if (axis.scale === "log") return v > 0 ? v : null;
    return axis.scale === "symlog" ? bend(v) : v;
  });
  const shownAxis = (axis) => {
    const found = {
      title: { text: axis.label }, gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"),
      automargin: true,
    };
    if (axis.scale === "log") Object.assign(found, { type: "log", exponentformat: "power", dtick: undefined, nticks: 8 });
    if (axis.scale === "symlog") Object.assign(found, { tickvals: TICKS.map(bend), ticktext: TICKS.map(short) });
    return found;
  };

  const choice = (text, options, changed) => {
    const select = make("select", {}, ...options.map((name, i) => make("option", { value: i }, name)));
    select.addEventListener("change", () => changed(Number(select.value)));
    return make("label", {}, text, select);
  };
  const legend = (figure, entries, changed) => {
    const hidden = new Set();
    const box = figure.querySelector(".legend");
    const draw = () => {
      box.replaceChildren(...entries().map(({ name, look, point, dash }) => {
        const mark = make("i", { className: point ? `point ${shape(look)}` : "" });
        mark.style.borderColor = colour(look);
        if (!point) mark.style.borderTopStyle = { solid: "solid", dot: "dotted" }[dash] || "dashed";
        const entry = make("button", { type: "button" }, mark, name);
        entry.setAttribute("aria-pressed", String(!hidden.has(name)));
        entry.addEventListener("click", () => {
          if (!hidden.delete(name)) hidden.add(name);
          entry.setAttribute("aria-pressed", String(!hidden.has(name)));
          changed();
        });
        return entry;
      }));
    };
    return { hidden, draw };
  };

  const drawChart = (figure, data) => {
    const controls = figure.querySelector(".controls"), place = figure.querySelector(".plot");
    let x = 0, y = 0;
    const has = (series) => data.x[x].key in series.columns && data.y[y].key in series.columns;
    const entries = () => {
      const seen = new Map();
      for (const s of data.series.filter(has)) {
        const before = seen.get(s.name);
        seen.set(s.name, { name: s.name, look: s.look, dash: dashes(s), point: s.mode === "markers" && (!before || before.point) });
      }
      return [...seen.values()];
    };
    const names = legend(figure, entries, () => draw());
    const draw = () => {
      const across = data.x[x], up = data.y[y], traces = [];
      for (const s of data.series.filter((each) => has(each) && !names.hidden.has(each.name))) {
        const own = colour(s.look), xs = s.columns[across.key], ys = s.columns[up.key];
        const low = s.columns[`${up.key}:low`], high = s.columns[`${up.key}:high`];
        if (low && high) {
          const rows = xs.map((_, i) => i).filter((i) => placed(across, [xs[i]])[0] !== null
            && [low, high].every((side) => placed(up, [side[i]])[0] !== null));
          const there = rows.map((i) => xs[i]), back = [...rows].reverse();
          traces.push({
            x: placed(across, [...there, ...back.map((i) => xs[i])]),
            y: placed(up, [...rows.map((i) => high[i]), ...back.map((i) => low[i])]),
            type: "scatter", mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: faint(own, 0.18), hoverinfo: "skip",
          });
        }
        const bars = (key) => (s.columns[`${key}:error`]
          ? { type: "data", array: s.columns[`${key}:error`], thickness: 1, width: 2 } : undefined);
        traces.push({
          x: placed(across, xs), y: placed(up, ys), type: "scatter", mode: s.mode, name: s.name,
          line: { color: own, width: s.faint ? 0.8 : 2, dash: s.faint ? "solid" : dashes(s), shape: s.shape }, opacity: s.faint ? 0.45 : 1,
          marker: { color: own, size: s.mode === "markers" ? 10 : 6, symbol: shape(s.look) },
          error_x: across.scale === "symlog" ? undefined : bars(across.key), error_y: bars(up.key),
          customdata: xs.map((v, i) => [short(v), short(ys[i])]),
          hovertemplate: `${across.label}: %{customdata[0]}<br>${up.label}: %{customdata[1]}<extra>%{fullData.name}</extra>`,
        });
      }
      const shapes = [], annotations = [];
      for (const mark of data.marks) {
        const vertical = mark.key === across.key;
        if (!vertical && mark.key !== up.key) continue;
        const axis = vertical ? across : up, at = placed(axis, [mark.at])[0];
        if (at === null) continue;
        const letter = vertical ? "x" : "y", other = vertical ? "y" : "x";
        shapes.push({
          type: "line", [`${letter}0`]: at, [`${letter}1`]: at, [`${other}0`]: 0, [`${other}1`]: 1,
          [`${other}ref`]: "paper", line: { color: css("--dim"), width: 1.5, dash: "dash" },
        });
        annotations.push({
          [letter]: axis.scale === "log" ? Math.log10(at) : at, [other]: 1, [`${other}ref`]: "paper", text: mark.text, showarrow: false,
          xanchor: vertical ? "left" : "right", yanchor: vertical ? "top" : "bottom", font: { color: css("--dim"), size: 12 },
        });
      }
      Plotly.react(place, traces, layout({
        xaxis: shownAxis(across), yaxis: { ...shownAxis(up), ...(data.equal ? { scaleanchor: "x" } : {}) }, shapes, annotations,
      }), CONFIG);
      names.draw();
    };
    if (data.y.length > 1) controls.append(choice("Show", data.y.map((a) => a.label), (i) => { y = i; draw(); }));
    if (data.x.length > 1) controls.append(choice("against", data.x.map((a) => a.label), (i) => { x = i; draw(); }));
    return draw;
  };

  // Tables: a heading's button sorts by its column, again the other way; numbers as numbers, "±" and "%" left aside.
  const value = (cell) => {
    const text = cell.textContent.replace(/,/g, "").replace("−", "-").trim();
    const found = text.match(/^-?\d[\d.]*(e-?\d+)?/);
    return found ? Number(found[0]) : text === "–" || text === "" ? Infinity : text;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a === b ? 0 : a < b ? -1 : 1;
    if (typeof a === "number") return -1;
    return typeof b === "number" ? 1 : a.localeCompare(b);
  };
  for (const table of document.querySelectorAll("table")) {
    const body = table.tBodies[0], heads = [...table.querySelectorAll("th")];
    [...(body.rows[0]?.cells || [])].forEach((_, i) => {
      const cells = [...body.rows].map((row) => row.cells[i]).filter(Boolean);
      const long = cells.some((cell) => cell.textContent.length > 24);
      if (i > 0 && (long || cells.every((cell) => typeof value(cell) === "string"))) {
        [...cells, heads[i]].forEach((cell) => cell?.classList.add(long ? "words" : "names"));
      }
    });
    heads.forEach((head, i) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => compare(value(a.cells[i]), value(b.cells[i])) * (down ? -1 : 1));
      body.append(...rows);
    }));
  }

  for (const copy of document.querySelectorAll(".copy")) {
    copy.addEventListener("click", async () => {
      const text = copy.parentElement.querySelector("pre");
      try {
        await navigator.clipboard.writeText(text.textContent);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(text);
        copy.textContent = "Selected";
      }
    });
  }

  for (const figure of document.querySelectorAll("figure.drawn")) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    redraws.push(drawChart(figure, data));
  }
  paint();
  root.dataset.ready = "yes";
})();
