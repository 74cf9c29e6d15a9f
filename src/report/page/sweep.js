// Any number against any key that varies: a panel for each combination of the other keys, a line
// for each backend.

const BATCH_AXES = ["batch", "num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len"];
const MOST_PANELS = 12;
// log: null = where the values of a scenario are far apart.
const sweepState = {x: "", y: "", log: null, panels: MOST_PANELS};
const FAR_APART = 60;

/// What stays the same along a line when a number of the batch is the axis, from most to least.
const HOLD = [["num_reqs", "max_query_len"], ["num_reqs"], ["num_actual_tokens"], []];

/// Keys that varied in the scenario of a result and are not the axis, with their values.
function heldFields(result, axis, hold) {
  const isBatch = BATCH_AXES.includes(axis) && axis !== "batch";
  return axesOf(result)
    .filter((key) => key !== axis && (BATCH_AXES.includes(key) ? (isBatch ? hold.includes(key) :
      axis !== "batch" && key === "batch") : true))
    .map((key) => [key, result.fields[key]]);
}

function panelsBy(results, axis, hold) {
  return groupBy(results, (r) => JSON.stringify([r.scenario, heldFields(r, axis, hold)]));
}

/// Panels of results; of the ways to hold the rest of the batch, the one with the most points on
/// lines, without two results of a backend at one place.
function panelsOf(results, axis) {
  const choices = BATCH_AXES.includes(axis) && axis !== "batch" ? HOLD : [[]];
  let best = null;
  for (const hold of choices) {
    const panels = panelsBy(results, axis, hold);
    let onLines = 0;
    let twice = false;
    for (const panel of panels.values()) {
      for (const line of linesOf(panel, axis)) {
        const places = new Set(line.map((r) => r.fields[axis]));
        if (places.size > 1) onLines += line.length;
        twice = twice || places.size < line.length;
      }
    }
    if (twice && best) continue;
    if (!best || onLines > best.onLines) best = {panels, onLines, hold};
  }
  return best;
}

function sweepAxes(results) {
  const axes = new Map();
  for (const result of results) {
    for (const key of axesOf(result)) {
      if (!axes.has(key)) axes.set(key, new Set());
      axes.get(key).add(result.fields[key]);
    }
  }
  return [...axes].filter(([, values]) => values.size > 1).map(([key]) => key);
}

/// The axis with the longest lines; numbers before texts.
function bestAxis(results, axes) {
  const score = (axis) => {
    const {panels, onLines} = panelsOf(results, axis);
    const numeric = results.every((r) => isNumber(r.fields[axis] ?? 0));
    return onLines / panels.size * (numeric ? 1.5 : 1);
  };
  return axes[d3.scan(axes, (a, b) => score(b) - score(a))];
}

/// What a batch does: decodes, prefills, or both in one step.
function kindOfBatch(result) {
  const lengths = String(fieldOf(result, "batch") ?? "").split("_")
    .map((segment) => /^\d*q(\d+k?)(s|$)/.exec(segment)?.[1]).filter(Boolean);
  if (!lengths.length) return fieldOf(result, "max_query_len") > 1 ? "prefill" : "decode";
  const decodes = lengths.filter((length) => length === "1").length;
  return decodes === lengths.length ? "decode" : decodes ? "mixed" : "prefill";
}

/// What is shown first: what decodes are slow by, or what the others are.
function firstMetric(results, keys) {
  const decodes = results.filter((r) => kindOfBatch(r) === "decode").length;
  const rate = 2 * decodes > results.length ? "bytes" : "flops";
  return keys.includes(rate) ? rate : keys[0];
}

/// Batches by what they do, then by how much of it.
function batchRank(result) {
  const number = (key) => Number(fieldOf(result, key)) || 0;
  return [["decode", "prefill", "mixed"].indexOf(kindOfBatch(result)), number("num_actual_tokens"),
          number("max_seq_len"), number("num_reqs")];
}

function compareRanks(a, b) {
  const at = a.findIndex((value, i) => value !== b[i]);
  return at < 0 ? 0 : a[at] - b[at];
}

/// The values of an axis in an order that means something: numbers by size, batches by kind and
/// size, words as the scenario has them.
function placesOf(results, axis) {
  const first = new Map();
  for (const result of results) {
    if (!first.has(result.fields[axis])) first.set(result.fields[axis], result);
  }
  const values = [...first.keys()];
  if (values.every((value) => isNumber(value))) return values.sort((a, b) => a - b);
  if (axis !== "batch") return values;
  return values.sort((a, b) => compareRanks(batchRank(first.get(a)), batchRank(first.get(b))) ||
    byText(String(a), String(b)));
}

function sweepScale(results, axis) {
  const places = placesOf(results, axis);
  const isNumeric = places.every((value) => isNumber(value));
  if (!isNumeric || places.length < 2) {
    return {places, scale: d3.scaleBand().domain(places).padding(0.25), isBand: true};
  }
  const wide = places[0] > 0 && places[places.length - 1] / places[0] >= 8;
  const scale = wide ? d3.scaleLog().base(2).domain(logDomain(places, 1.1)) :
    d3.scaleLinear().domain(d3.extent(places)).nice();
  return {places, scale, isBand: false};
}

/// The measured ceilings of a rate that are near enough to be shown above it.
function ceilingsUnder(metric, results, highest) {
  if (metric !== METRICS.flops && metric !== METRICS.bytes) return [];
  const of = (r) => (metric === METRICS.flops ? ceilingsOf(r).flops : ceilingsOf(r).bytes);
  return distinct(results.map(of)).filter((ceiling) => ceiling < 2.5 * highest);
}

const plottable = (results, axis, metric) =>
  results.filter((r) => isNumber(metric.of(r)) && r.fields[axis] !== undefined);

/// Whether the values reach over decades, so that the small ones would lie on the axis.
function areFarApart(values) {
  const [least, most] = d3.extent(values.filter((value) => value > 0));
  return most / least > FAR_APART;
}

/// The y axis that all panels of a scenario share.
function sharedScale(values, ceilings) {
  const isLog = sweepState.log ?? areFarApart(values);
  return isLog ? d3.scaleLog().domain(logDomain([...values, ...ceilings])) :
    d3.scaleLinear().domain([0, d3.max([...values, ...ceilings]) * 1.08 || 1]);
}

/// The points of a line: results of a backend, and where a number of the batch is the axis, of the
/// same kind of batch. Why: a decode and a prefill of as many tokens have nothing between them.
function linesOf(results, axis) {
  const isBatch = BATCH_AXES.includes(axis);
  return [...groupBy(results, (r) => `${r.backend}\n${isBatch ? kindOfBatch(r) : ""}`).values()];
}

/// `neighbours`: the results of the scenario that are plotted, whose scales this panel has.
function drawPanel(container, results, axis, metric, neighbours) {
  const plotted = plottable(results, axis, metric);
  if (!plotted.length) return;
  const beside = plottable(neighbours, axis, metric);
  const backends = backendsIn(beside);
  const {places, scale, isBand} = sweepScale(beside, axis);
  const values = beside.map(metric.of);
  const ceilings = ceilingsUnder(metric, beside, d3.max(values));
  const y = sharedScale(values, ceilings);
  const chart = plot(container, {
    label: `${metric.name} against ${axis}`,
    x: {scale, label: axis, ticks: places, room: 44, labelAll: isBand,
        format: (value) => (isBand ? formatValue(value) : formatCount(value))},
    y: {scale: y, label: metric.name, format: (value) => tickText(metric, value)},
  });
  for (const ceiling of ceilings) {
    referenceLine(chart, ceiling, `measured ceiling ${metric.format(ceiling)}`);
  }
  const lane = isBand ? scale.bandwidth() / backends.length : 0;
  const shift = (backend) =>
    (isBand ? (backends.indexOf(backend) + 0.5) * lane - scale.bandwidth() / 2 : 0);
  const floor = chart.inner.height;
  for (const line of linesOf(plotted, axis)) {
    const {backend} = line[0];
    const placeOf = (r) => places.indexOf(r.fields[axis]);
    const sorted = [...line].sort((a, b) => placeOf(a) - placeOf(b));
    const isFunction = new Set(sorted.map(placeOf)).size === sorted.length;
    if (isBand) {
      chart.marks.append("g").selectAll("rect").data(sorted).join("rect")
        .attr("class", `bar ${colorClass(backend)}`).attr("width", Math.max(1, lane - 2))
        .attr("x", (r) => chart.x(r.fields[axis]) + backends.indexOf(backend) * lane + 1)
        .attr("y", (r) => chart.y(metric.of(r)))
        .attr("height", (r) => Math.max(0, floor - chart.y(metric.of(r))));
    } else if (isFunction) {
      chart.marks.append("path").attr("class", `line ${colorClass(backend)}`).attr("d",
        d3.line().x((r) => chart.x(r.fields[axis])).y((r) => chart.y(metric.of(r)))(sorted));
    }
    if (metric === METRICS.time) drawQuartiles(chart, sorted, axis, backend, shift(backend));
  }
  drawPoints(chart, plotted.map((result) => ({
    x: result.fields[axis], y: metric.of(result), backend: result.backend, result,
    shift: shift(result.backend), title: titleOf(result), lines: describe(result)})),
    isBand ? 26 : 46);
}

function drawQuartiles(chart, results, axis, backend, shift) {
  const middle = chart.x.bandwidth ? chart.x.bandwidth() / 2 : 0;
  chart.marks.append("g").selectAll("line").data(results).join("line")
    .attr("class", `whisker ${colorClass(backend)}`)
    .attr("x1", (r) => chart.x(r.fields[axis]) + middle + shift)
    .attr("x2", (r) => chart.x(r.fields[axis]) + middle + shift)
    .attr("y1", (r) => chart.y(r.timing.q1_us)).attr("y2", (r) => chart.y(r.timing.q3_us));
}

const shorten = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);

/// A tick is short: the unit stands in the metric's format.
function tickText(metric, value) {
  return metric.format(value).replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "")
    .replace(/FLOP\/s|B\/s|\/s/, "");
}

function panelTitle(result, axis, hold) {
  const held = heldFields(result, axis, hold).map(([key, value]) => `${key}=${formatValue(value)}`);
  return [result.scenario, ...held].join(" · ");
}

/// Whether the panels of every scenario are.
function isLogarithmic(results) {
  if (sweepState.log !== null) return sweepState.log;
  return [...groupBy(results, (r) => r.scenario).values()].every((of) =>
    areFarApart(of.map(METRICS[sweepState.y].of).filter(isNumber)));
}

function drawSweep(container) {
  const results = selection.results();
  const axes = sweepAxes(results);
  if (!axes.length) {
    container.append(absent("Nothing varies in the selected results: there is no axis to plot."));
    return;
  }
  const timed = results.filter((r) => r.timing);
  const usable = Object.entries(METRICS).filter(([, m]) => results.some((r) => isNumber(m.of(r))))
    .map(([key, m]) => [key, m.name]);
  if (!usable.length) {
    container.append(absent("The selected results have neither times nor errors."));
    return;
  }
  if (!axes.includes(sweepState.x)) sweepState.x = bestAxis(timed.length ? timed : results, axes);
  const keys = usable.map(([key]) => key);
  if (!keys.includes(sweepState.y)) sweepState.y = firstMetric(timed, keys);
  const metric = METRICS[sweepState.y];
  const redraw = () => redrawView("sweep");
  const has = (r) => isNumber(metric.of(r));
  container.append(element("div", {class: "controls"},
    chooser("Show", usable, sweepState.y,
      (y) => { sweepState.y = y; redraw(); }),
    chooser("against", axes.map((axis) => [axis, axis]), sweepState.x,
      (x) => { sweepState.x = x; redraw(); }),
    checkbox("logarithmic", isLogarithmic(results), (log) => {
      sweepState.log = log;
      redraw();
    })),
    legend(backendsIn(results.filter(has))));
  const plotted = results.filter((r) => has(r) && r.fields[sweepState.x] !== undefined);
  if (!plotted.length) {
    container.append(absent(`No selected result has both this number and ${sweepState.x}.`));
    return;
  }
  const {panels, hold} = panelsOf(plotted, sweepState.x);
  // Those with the most to see stand first, panels of a scenario side by side.
  const places = (panel) => new Set(panel.map((r) => r.fields[sweepState.x])).size;
  const most = new Map();
  for (const panel of panels.values()) {
    const {scenario} = panel[0];
    most.set(scenario, Math.max(most.get(scenario) || 0, places(panel)));
  }
  const scenarios = [...most.keys()].sort((a, b) => most.get(b) - most.get(a));
  const sorted = [...panels.values()].sort((a, b) =>
    scenarios.indexOf(a[0].scenario) - scenarios.indexOf(b[0].scenario) || places(b) - places(a));
  const neighboursOf = (panel) =>
    sorted.filter((other) => other[0].scenario === panel[0].scenario).flat();
  drawPanels(container, sorted, sweepState, redraw,
    (panel) => panelTitle(panel[0], sweepState.x, hold),
    (place, panel) => drawPanel(place, panel, sweepState.x, metric, neighboursOf(panel)));
}

/// Panels side by side, the first of them at once; state.panels is how many.
function drawPanels(container, panels, state, redraw, titleOfPanel, draw) {
  const grid = element("div", {class: panels.length === 1 ? "panels one" : "panels"});
  container.append(grid);
  const shown = panels.slice(0, state.panels).map((panel) => {
    const place = element("figure", {}, element("figcaption", {}, titleOfPanel(panel)));
    grid.append(place);
    return [place, panel];
  });
  for (const [place, panel] of shown) draw(place, panel);
  const more = panels.length - shown.length;
  if (more > 0) {
    const showMore = () => { state.panels += 3 * MOST_PANELS; redraw(); };
    container.append(element("p", {class: "more"}, `${plural(more, "more panel")} `,
      element("button", {type: "button", onclick: showMore}, "Show more")));
  }
}
