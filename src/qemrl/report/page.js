"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NAMESPACE = "http://www.w3.org/2000/svg";
  const hiddenArms = new Set();
  const switches = { "log-steps": false, "log-returns": false, seeds: true };
  const charts = [];

  // Numbers as text

  function short(value) {
    for (const [size, unit] of [[1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(value) >= size) return minus(String(Number((value / size).toPrecision(3)))) + unit;
    }
    return minus(String(Number(value.toPrecision(3))));
  }

  function exact(value) {
    const size = Math.abs(value);
    const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 3;
    return minus(value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  }

  const minus = (text) => text.replace("-", "\u2212");

  // Elements

  function svg(name, attributes, parent) {
    const element = document.createElementNS(NAMESPACE, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.append(element);
    return element;
  }

  function write(text, attributes, parent) {
    svg("text", attributes, parent).textContent = text;
  }

  // Scales: from a range of numbers to pixels, with ticks

  function linearScale(low, high, from, to, count) {
    const span = high - low || 1;
    const rough = span / count;
    const decade = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * decade).find((size) => size >= rough * 0.999);
    const ticks = [];
    const last = Math.floor(high / step + 1e-9);
    for (let place = Math.ceil(low / step - 1e-9); place <= last; place += 1) ticks.push(place * step);
    return { at: (value) => from + ((value - low) / span) * (to - from), ticks };
  }

  function logScale(low, high, from, to, count) {
    const [start, span] = [Math.log10(low), Math.log10(high) - Math.log10(low) || 1];
    for (const factors of [[1, 1.5, 2, 3, 4, 5, 7], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]]) {
      const ticks = [];
      for (let power = Math.floor(start); power <= start + span; power += 1) {
        for (const factor of factors) {
          const value = factor * 10 ** power;
          if (value >= low * 0.9999 && value <= high * 1.0001) ticks.push(value);
        }
      }
      const every = Math.max(1, Math.ceil(ticks.length / (count + 1)));
      if (ticks.length <= count + 1 || factors.length === 1) {
        const at = (value) => from + ((Math.log10(Math.max(value, low / 1e6)) - start) / span) * (to - from);
        return { at, ticks: ticks.filter((_, place) => place % every === 0) };
      }
    }
    return null;
  }

  // A chart: lines with bands, thin lines behind them, and what is under the pointer

  function visible(series) {
    return series.arm === null || !hiddenArms.has(series.arm);
  }

  function extent(spec) {
    const lines = spec.series.filter(visible);
    const thin = switches.seeds || !spec.toggles ? lines.flatMap((series) => series.thin || []) : [];
    const bands = lines.flatMap((series) => (series.low ? [...series.low, ...series.high] : []));
    const ys = [...lines, ...thin].flatMap((line) => line.y);
    const xs = [...lines, ...thin].flatMap((line) => line.x);
    const least = (values) => values.reduce((one, other) => Math.min(one, other), Infinity);
    const most = (values) => values.reduce((one, other) => Math.max(one, other), -Infinity);
    let [low, high] = [least(ys), most(ys)];
    // Intervals of few seeds can be far wider than all curves, and may reach below zero, where logarithms end.
    if (!switches["log-returns"]) {
      const room = (high - low) / 4;
      const [down, up] = [Math.max(low - room, least(bands)), Math.min(high + room, most(bands))];
      [low, high] = [Math.min(low, down), Math.max(high, up)];
    }
    return { x: spec.xRange || [least(xs), most(xs)], y: spec.yRange || [low, high], empty: xs.length === 0 };
  }

  function padded([low, high], log) {
    if (log) return low === high ? [low / 2, high * 2] : [low / 1.08, high * 1.08];
    const margin = (high - low) * 0.05 || Math.abs(low) * 0.1 || 1;
    return [low - margin, high + margin];
  }

  function scalesOf(spec, width, height) {
    const found = extent(spec);
    const [logX, logY] = ["log-steps", "log-returns"].map((name) => Boolean(spec.toggles) && switches[name]);
    const pad = { left: 46, right: 18, top: 8, bottom: 38 };
    const [down, up] = spec.yRange || padded(found.y, logY);
    const bottom = height - pad.bottom;
    const y = (logY ? logScale : linearScale)(down, up, bottom, pad.top, Math.max(2, Math.round(bottom / 32)));
    pad.left = 24 + 6.6 * y.ticks.reduce((most, tick) => Math.max(most, short(tick).length), 2);
    const across = Math.max(3, Math.floor((width - pad.left) / 64));
    let [left, right] = found.x;
    if (spec.toggles && !logX) left = Math.min(0, left);
    if (left === right) [left, right] = logX ? [left / 2, right * 2] : [left - 1, right + 1];
    const x = (logX ? logScale : linearScale)(left, right, pad.left, width - pad.right, across);
    return { x, y, pad, empty: found.empty };
  }

  function path(line, scales, stepped) {
    let text = "";
    line.x.forEach((value, place) => {
      const [x, y] = [scales.x.at(value), scales.y.at(line.y[place])].map((number) => number.toFixed(1));
      if (place === 0) text += `M${x} ${y}`;
      else text += stepped ? `H${x}V${y}` : `L${x} ${y}`;
    });
    return text;
  }

  function band(series, scales) {
    const corners = (values) => values.flatMap((value, place) => {
      const [x, y] = [scales.x.at(series.x[place]).toFixed(1), scales.y.at(value).toFixed(1)];
      const before = place && series.stepped ? [`${x} ${scales.y.at(values[place - 1]).toFixed(1)}`] : [];
      return [...before, `${x} ${y}`];
    });
    return `M${corners(series.high).join("L")}L${corners(series.low).reverse().join("L")}Z`;
  }

  function drawAxes(root, spec, scales, width, height) {
    const bottom = height - scales.pad.bottom;
    const right = width - scales.pad.right;
    for (const tick of scales.y.ticks) {
      const y = scales.y.at(tick).toFixed(1);
      svg("path", { class: "grid", d: `M${scales.pad.left} ${y}H${right}` }, root);
      write(short(tick), { x: scales.pad.left - 6, y: Number(y) + 4, "text-anchor": "end" }, root);
    }
    svg("path", { class: "axis", d: `M${scales.pad.left} ${scales.pad.top}V${bottom}H${right}` }, root);
    for (const tick of scales.x.ticks) {
      const x = scales.x.at(tick).toFixed(1);
      svg("path", { class: "axis", d: `M${x} ${bottom}v4` }, root);
      write(short(tick), { x, y: bottom + 16, "text-anchor": "middle" }, root);
    }
    const middle = (scales.pad.left + right) / 2;
    write(spec.xLabel, { x: middle, y: height - 5, "text-anchor": "middle" }, root);
    const center = (scales.pad.top + bottom) / 2;
    write(spec.yLabel, { x: 11, y: center, "text-anchor": "middle", transform: `rotate(-90 11 ${center})` }, root);
  }

  function drawLines(root, spec, scales) {
    const lines = spec.series.filter(visible);
    const tag = (series) => (series.arm === null ? {} : { "data-arm": series.arm });
    const look = (series, kind) => (series.arm === null ? kind : `${kind} arm-${series.arm}`);
    for (const series of lines) {
      if (series.low) svg("path", { class: look(series, "band"), d: band(series, scales), ...tag(series) }, root);
      const thin = !spec.toggles || switches.seeds ? series.thin || [] : [];
      for (const line of thin) {
        svg("path", { class: look(series, "seed"), d: path(line, scales, false), ...tag(series) }, root);
      }
    }
    for (const series of lines) {
      const dash = series.arm !== null && !series.plain ? data.arms[series.arm].dash : null;
      const extra = dash ? { "stroke-dasharray": dash } : {};
      const shape = { class: look(series, series.kind || "mean"), d: path(series, scales, series.stepped) };
      svg("path", { ...shape, ...extra, ...tag(series) }, root);
      if (series.x.length === 1) {
        const [cx, cy] = [scales.x.at(series.x[0]), scales.y.at(series.y[0])];
        svg("circle", { class: look(series, "point"), cx, cy, r: 3.5 }, root);
      }
    }
  }

  function drawChart(chart) {
    const { spec, host } = chart;
    const width = Math.max(150, host.clientWidth);
    const height = Math.round(spec.height || Math.min(300, Math.max(210, width * 0.62)));
    const scales = scalesOf(spec, width, height);
    if (chart.root) chart.root.remove();
    chart.root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.label }, host);
    chart.width = width;
    chart.height = height;
    chart.scales = scales;
    if (scales.empty) {
      write("no algorithm is selected", { x: width / 2, y: height / 2, "text-anchor": "middle" }, chart.root);
      return;
    }
    // Intervals may reach beyond the axes.
    const clip = svg("clipPath", { id: `clip-${chart.number}` }, chart.root);
    const { left, right, top, bottom } = scales.pad;
    const size = { width: Math.max(1, width - left - right + 3), height: height - top - bottom + 6 };
    svg("rect", { x: left, y: top - 3, ...size }, clip);
    drawAxes(chart.root, spec, scales, width, height);
    const lines = svg("g", { "clip-path": `url(#clip-${chart.number})` }, chart.root);
    drawLines(lines, spec, scales);
    chart.cursor = svg("path", { class: "cursor", d: "" }, chart.root);
  }

  // What is under the pointer, or at the place that arrow keys have moved to

  function places(spec) {
    const steps = new Set(spec.series.filter(visible).flatMap((series) => series.x));
    return [...steps].sort((one, other) => one - other);
  }

  function nearest(values, goal) {
    let best = 0;
    values.forEach((value, place) => {
      if (Math.abs(value - goal) < Math.abs(values[best] - goal)) best = place;
    });
    return best;
  }

  function pointAt(chart, place) {
    const { spec, scales, tip } = chart;
    chart.place = place;
    const x = scales.x.at(place);
    chart.cursor.setAttribute("d", `M${x.toFixed(1)} ${scales.pad.top}V${chart.height - scales.pad.bottom}`);
    const rows = [document.createElement("p")];
    rows[0].textContent = spec.at.replace("{}", spec.share ? exact(place) : place.toLocaleString("en-US"));
    const found = spec.series.filter(visible).map((series) => [series, nearest(series.x, place)]);
    found.sort(([one, first], [other, second]) => other.y[second] - one.y[first]);
    for (const [series, index] of found) {
      const row = document.createElement("p");
      const name = document.createElement("b");
      name.textContent = data.arms[series.arm].name;
      const interval = series.low ? ` [${exact(series.low[index])}, ${exact(series.high[index])}]` : "";
      const late = series.x[index] === place ? "" : ` at ${series.x[index].toLocaleString("en-US")}`;
      row.append(name, ` ${exact(series.y[index])}${interval}${late}`);
      rows.push(row);
    }
    tip.replaceChildren(...rows);
    tip.hidden = false;
    const room = chart.host.clientWidth - tip.offsetWidth;
    const ratio = chart.host.clientWidth / chart.width;
    const beside = x * ratio + 12 > room ? x * ratio - tip.offsetWidth - 12 : x * ratio + 12;
    tip.style.left = `${Math.max(0, Math.min(room, beside))}px`;
    tip.style.top = `${scales.pad.top}px`;
  }

  function leave(chart) {
    chart.tip.hidden = true;
    chart.place = null;
    if (chart.cursor) chart.cursor.setAttribute("d", "");
  }

  function follow(chart) {
    const { host, spec } = chart;
    chart.tip = document.createElement("div");
    chart.tip.className = "tip";
    chart.tip.setAttribute("role", "status");
    chart.tip.hidden = true;
    host.append(chart.tip);
    host.tabIndex = 0;
    const move = (event) => {
      const box = chart.root.getBoundingClientRect();
      const pixel = ((event.clientX - box.left) / box.width) * chart.width;
      const choices = places(spec);
      if (!choices.length) return;
      pointAt(chart, choices[nearest(choices.map((place) => chart.scales.x.at(place)), pixel)]);
    };
    host.addEventListener("pointermove", move);
    host.addEventListener("pointerdown", move);
    host.addEventListener("pointerleave", () => leave(chart));
    host.addEventListener("blur", () => leave(chart));
    host.addEventListener("keydown", (event) => {
      const change = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const choices = places(spec);
      if (event.key === "Escape") leave(chart);
      if (!change || !choices.length) return;
      event.preventDefault();
      const outside = change > 0 ? -1 : choices.length;
      const at = chart.place === null ? outside : nearest(choices, chart.place);
      pointAt(chart, choices[Math.min(choices.length - 1, Math.max(0, at + change))]);
    });
  }

  // The page

  function redraw() {
    for (const chart of charts) {
      if (chart.tip) leave(chart);
      drawChart(chart);
    }
  }

  for (const host of document.querySelectorAll("[data-chart]")) {
    const chart = { host, spec: data.charts[Number(host.dataset.chart)], number: charts.length, place: null };
    charts.push(chart);
    drawChart(chart);
    if (chart.spec.at) follow(chart);
  }

  for (const button of document.querySelectorAll("button.arm")) {
    button.addEventListener("click", () => {
      const arm = Number(button.dataset.arm);
      if (!hiddenArms.delete(arm)) hiddenArms.add(arm);
      for (const same of document.querySelectorAll(`button.arm[data-arm="${arm}"]`)) {
        same.setAttribute("aria-pressed", String(!hiddenArms.has(arm)));
      }
      redraw();
    });
  }

  for (const button of document.querySelectorAll("button.switch")) {
    button.addEventListener("click", () => {
      switches[button.dataset.switch] = !switches[button.dataset.switch];
      button.setAttribute("aria-pressed", String(switches[button.dataset.switch]));
      redraw();
    });
  }

  const baseline = document.getElementById("baseline");
  if (baseline) {
    baseline.addEventListener("change", () => {
      for (const box of document.querySelectorAll("[data-baseline]")) {
        box.hidden = box.dataset.baseline !== baseline.value;
      }
    });
  }

  let width = document.documentElement.clientWidth;
  window.addEventListener("resize", () => {
    if (document.documentElement.clientWidth === width) return;
    width = document.documentElement.clientWidth;
    redraw();
  });
})();
