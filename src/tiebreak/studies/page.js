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
          line: { color: own, width: 2, dash: dashes(s), shape: s.shape },
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
      Plotly.react(place, traces, layout({ xaxis: shownAxis(across), yaxis: shownAxis(up), shapes, annotations }), CONFIG);
      names.draw();
    };
    if (data.y.length > 1) controls.append(choice("Show", data.y.map((a) => a.label), (i) => { y = i; draw(); }));
    if (data.x.length > 1) controls.append(choice("against", data.x.map((a) => a.label), (i) => { x = i; draw(); }));
    return draw;
  };

  const drawLandscape = (figure, data) => {
    const controls = figure.querySelector(".controls"), place = figure.querySelector(".plot");
    const views = Object.entries(data.views);
    const [[left, right], [bottom, top]] = [data.views[views[0][0]][0], data.views[views[0][0]][1]];
    place.style.aspectRatio = String(Math.max(0.9, (right - left) / (top - bottom)));
    place.style.height = "auto";
    place.style.minHeight = "14rem";
    place.style.maxHeight = "32rem";
    let view = 0;
    const slider = make("input", { type: "range", min: "0", max: "100", value: "100" });
    const output = make("output");
    const shown = (path) => Math.round((Number(slider.value) / 100) * (path.x.length - 1));
    const entries = () => data.paths.map(({ name, look }) => ({ name, look, dash: dashes({ look }) }));
    const names = legend(figure, entries, () => draw());
    const lines = () => data.paths.flatMap((path) => {
      const end = shown(path), own = colour(path.look), visible = !names.hidden.has(path.name);
      return [{
        x: path.x.slice(0, end + 1), y: path.y.slice(0, end + 1), type: "scatter", mode: "lines", name: path.name, visible,
        line: { color: own, width: 2.5, dash: dashes(path) }, hoverinfo: "name",
      }, {
        x: [path.x[end]], y: [path.y[end]], type: "scatter", mode: "markers", name: path.name, visible,
        marker: { color: own, size: 11, line: { color: css("--back"), width: 1.5 } },
        hovertemplate: "(%{x:.3f}, %{y:.3f})<extra>%{fullData.name}</extra>",
      }];
    });
    const draw = () => {
      const [across, up] = views[view][1];
      const ground = {
        x: data.x, y: data.y, z: data.values, type: "contour", showscale: false, ncontours: 14,
        colorscale: [[0, css("--low")], [1, css("--high")]], line: { width: 0.6, color: css("--dim") }, hovertemplate: "g = %{z:.3g}<extra></extra>",
      };
      const spots = data.places.map(([name, symbol, points]) => ({
        x: points.map((p) => p[0]), y: points.map((p) => p[1]), type: "scatter", mode: "markers", name,
        marker: { symbol, size: 12, color: css("--back"), line: { color: css("--text"), width: 1.8 } },
        hovertemplate: "(%{x:.3f}, %{y:.3f})<extra>%{fullData.name}</extra>",
      }));
      const axis = (text, range) => ({ title: { text }, range, gridcolor: "rgba(0,0,0,0)", zeroline: false, automargin: true });
      const yaxis = { ...axis("x₂", up), scaleanchor: "x", constrain: "domain" };
      const xaxis = { ...axis("x₁", across), constrain: "domain" };
      Plotly.react(place, [ground, ...spots, ...lines()], layout({ xaxis, yaxis }), CONFIG);
      names.draw();
      tell();
    };
    const tell = () => {
      output.textContent = data.paths.map((path) => {
        const end = shown(path);
        return `${path.name}: step ${short(path.steps[end])}, ${short(path.calls[end])} calls`;
      }).join(" · ");
    };
    const slide = () => {
      const traces = lines(), first = 1 + data.places.length;
      Plotly.restyle(place, { x: traces.map((t) => t.x), y: traces.map((t) => t.y) }, traces.map((_, i) => first + i));
      tell();
    };
    slider.addEventListener("input", slide);
    let clock = null;
    const play = make("button", { type: "button" }, "Play");
    const stop = () => { clearInterval(clock); clock = null; play.textContent = "Play"; };
    play.addEventListener("click", () => {
      if (clock !== null) { stop(); return; }
      play.textContent = "Stop";
      if (slider.value === "100") slider.value = "0";
      clock = setInterval(() => {
        slider.value = String(Number(slider.value) + 1);
        slide();
        if (slider.value === "100") stop();
      }, 60);
    });
    controls.append(make("label", {}, "Along the run", slider), play);
    if (views.length > 1) controls.append(choice("View", views.map(([name]) => name), (i) => { view = i; draw(); }));
    controls.append(output);
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
    redraws.push(({ chart: drawChart, landscape: drawLandscape })[data.kind](figure, data));
  }
  paint();
  root.dataset.ready = "yes";
})();
