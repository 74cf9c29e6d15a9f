// What a result's time is made of, and how it scales with the ranks of a context-parallel group.

const MOST_BARS = 24;
const stepState = {bars: MOST_BARS};
const dcpState = {panels: 6};
const WORLD = "dcp.world_size";

// Why an offset: the colours of backends would be read into steps.
const stepColor = (names, name) => `color${(names.indexOf(name) + 4) % NUM_COLORS}`;

const stepNames = (results) =>
  [...new Set(results.flatMap((r) => r.timing.steps.map((step) => step.name)))];

function stepLegend(names) {
  return element("ul", {class: "legend"}, names.map((name) => element("li", {},
    element("i", {class: `dot ${stepColor(names, name)}`, "aria-hidden": "true"}), name)));
}

/// The steps one upon the other: [{name, from, to}] in microseconds.
function stacked(result) {
  let sum = 0;
  return result.timing.steps.map(({name, median_us}) => {
    const part = {name, from: sum, to: sum + (median_us || 0), result};
    sum = part.to;
    return part;
  });
}

function drawSteps(container) {
  const results = selection.results().filter((r) => r.timing && r.timing.steps.length)
    .sort((a, b) => b.timing.total_us - a.timing.total_us);
  if (!results.length) {
    container.append(absent("No selected result has times of its steps."));
    return;
  }
  const names = stepNames(results);
  const shown = results.slice(0, stepState.bars);
  container.append(stepLegend(names));
  // Why shares and not times: a decode of microseconds and a prefill of milliseconds are both read.
  const list = element("ol", {class: "bars"}, shown.map((result) => {
    const parts = stacked(result);
    const total = parts.length ? parts[parts.length - 1].to : 0;
    return element("li", {},
      element("span", {class: "bar-name"}, `${titleOf(result)} `, element("b", {}, result.backend)),
      element("span", {class: "bar-track", role: "img", "aria-label": parts.map((p) =>
        `${p.name} ${formatTime(p.to - p.from)}`).join(", ")}, parts.map((part) => {
        const share = total > 0 ? 100 * (part.to - part.from) / total : 0;
        const text = `${part.name}: ${formatTime(part.to - part.from)}, ${share.toFixed(1)}%`;
        const span = element("span", {class: `part ${stepColor(names, part.name)}`,
                                      title: text}, share > 18 ? part.name : "");
        span.style.width = `${share}%`;
        return span;
      })),
      element("span", {class: "bar-value"}, formatTime(total)));
  }));
  container.append(list);
  const more = results.length - shown.length;
  if (more > 0) {
    container.append(element("p", {class: "more"}, `${plural(more, "shorter result")} `,
      element("button", {type: "button", onclick: () => {
        stepState.bars += 4 * MOST_BARS;
        redrawView("steps");
      }}, "Show more")));
  }
}

function drawDcp(container) {
  const results = selection.results().filter((r) => r.timing && isNumber(r.fields[WORLD]));
  if (!results.length) {
    container.append(absent("No selected result was timed over a swept dcp.world_size."));
    return;
  }
  if (results.some((r) => fieldOf(r, "dcp.transport") === "simulated")) {
    container.append(element("p", {class: "hint"}, "Ranks are simulated one after the other in " +
      "one process: a time is the sum over the ranks, so equal bars mean perfect scaling."));
  }
  const names = stepNames(results);
  container.append(stepLegend(names));
  const held = (r) => axesOf(r)
    .filter((key) => key !== WORLD && (!BATCH_AXES.includes(key) || key === "batch"))
    .map((key) => `${key}=${formatValue(r.fields[key])}`);
  const groups = groupBy(results, (r) => [r.scenario, r.backend, ...held(r)].join(" · "));
  drawPanels(container, [...groups], dcpState, () => redrawView("dcp"), ([title]) => title,
    (place, [, group]) => drawDcpPanel(place, group, names,
      results.filter((r) => r.scenario === group[0].scenario)));
}

/// `neighbours`: the results of the scenario, whose scale this panel has.
function drawDcpPanel(place, group, names, neighbours) {
  const sorted = [...group].sort((a, b) => a.fields[WORLD] - b.fields[WORLD]);
  const heightOf = (result) => d3.max(stacked(result), (part) => part.to);
  const one = sorted.find((r) => r.fields[WORLD] === 1);
  const chart = plot(place, {
    label: "Time of the steps by ranks",
    x: {scale: d3.scaleBand().domain(sorted.map((r) => r.fields[WORLD])).padding(0.35),
        label: WORLD, ticks: sorted.map((r) => r.fields[WORLD]), room: 30, format: String},
    y: {scale: d3.scaleLinear().domain([0, d3.max(neighbours, heightOf) * 1.12]),
        label: "time of the whole layer", format: (value) => tickText(METRICS.time, value)},
  });
  const parts = sorted.flatMap(stacked);
  chart.marks.append("g").selectAll("rect").data(parts).join("rect")
    .attr("class", (p) => `bar ${stepColor(names, p.name)}`)
    .attr("x", (p) => chart.x(p.result.fields[WORLD])).attr("width", chart.x.bandwidth())
    .attr("y", (p) => chart.y(p.to)).attr("height", (p) => chart.y(p.from) - chart.y(p.to));
  if (one) {
    chart.marks.append("g").selectAll("text").data(sorted).join("text").attr("class", "note")
      .attr("text-anchor", "middle")
      .attr("x", (r) => chart.x(r.fields[WORLD]) + chart.x.bandwidth() / 2)
      .attr("y", (r) => chart.y(heightOf(r)) - 5)
      .text((r) => `${(r.timing.total_us / one.timing.total_us).toFixed(2)}×`);
  }
  inspect(chart, parts.map((part) => ({
    at: [chart.x(part.result.fields[WORLD]) + chart.x.bandwidth() / 2,
         chart.y((part.from + part.to) / 2)],
    title: titleOf(part.result), result: part.result,
    lines: [["ranks", String(part.result.fields[WORLD])],
            [part.name, formatTime(part.to - part.from)],
            ["whole layer", formatTime(part.result.timing.total_us)]]})));
}
