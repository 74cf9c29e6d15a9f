// A plot: axes, grid, lines and points that can be looked at with a pointer or the keyboard.

const MARGIN = {top: 12, right: 16, bottom: 46, left: 74};

const LABEL_CHAR = 6.2;  // pixels of a character of a tick's label, on average
const MOST_LABEL = 19;   // characters of a label that is not level

/// How the labels of groups stand, so that all of them do: level, at a slant, or upright. Returns
/// the angle in degrees and the room below the axis.
function labelsOfGroups(axis) {
  const level = {angle: 0, room: MARGIN.bottom};
  if (!axis.scale.bandwidth || !axis.labelAll) return level;
  const widths = axis.scale.domain().map((value) => LABEL_CHAR * axis.format(value).length);
  const longest = Math.min(d3.max(widths) || 0, LABEL_CHAR * MOST_LABEL);
  const step = axis.scale.step();
  if (d3.max(widths) <= step - 4) return level;
  const angle = step >= 18 ? -40 : -90;
  return {angle, room: 42 + longest * Math.sin(-angle * Math.PI / 180)};
}

/// Shortened in the middle, because names of cases differ at both ends.
function shortenMiddle(text, most) {
  if (text.length <= most) return text;
  const tail = Math.floor((most - 1) / 2);
  return `${text.slice(0, most - 1 - tail)}…${text.slice(text.length - tail)}`;
}

/// spec: {label, height, x, y}; an axis is {scale, label, format, ticks, room, labelAll, whole}.
/// The scale gets its range here. Returns what the marks are drawn with.
function plot(container, spec) {
  const width = Math.max(280, container.clientWidth || 640);
  const innerWidth = width - MARGIN.left - MARGIN.right;
  spec.x.scale.range([0, innerWidth]);
  const labels = labelsOfGroups(spec.x);
  const height = (spec.height || Math.round(Math.min(460, Math.max(240, width * 0.62)))) +
    labels.room - MARGIN.bottom;
  const inner = {width: innerWidth, height: height - MARGIN.top - labels.room};
  spec.y.scale.range([inner.height, 0]);
  const svg = d3.select(container).append("svg")
    .attr("viewBox", `0 0 ${width} ${height}`).attr("width", width).attr("height", height)
    .attr("role", "img").attr("aria-label", spec.label);
  const root = svg.append("g").attr("transform", `translate(${MARGIN.left},${MARGIN.top})`);
  drawAxes(root, spec, inner, labels);
  const clip = `clip${plot.count++}`;
  svg.append("clipPath").attr("id", clip).append("rect")
    .attr("x", -8).attr("y", -8).attr("width", inner.width + 16).attr("height", inner.height + 16);
  const marks = root.append("g").attr("clip-path", `url(#${clip})`);
  return {svg, root, marks, inner, x: spec.x.scale, y: spec.y.scale, spec};
}
plot.count = 0;

/// How much a tick matters: decades, then 2 and 5 of a decade, then the rest.
function tickRank(tick) {
  const digit = Number(tick.toExponential().split("e")[0]);
  return digit === 1 ? 0 : digit === 2 || digit === 5 ? 1 : 2;
}

/// The ticks that have room, those that matter most first.
function ticksOf(axis, length, room) {
  const {scale} = axis;
  const isLog = Boolean(scale.base);
  const wanted = axis.ticks || scale.ticks(isLog ? 50 : Math.max(2, Math.floor(length / room)));
  const candidates = axis.whole ? wanted.filter(Number.isInteger) : wanted;
  const ranked = isLog && !axis.ticks ? [...candidates].sort((a, b) => tickRank(a) - tickRank(b)) :
    candidates;
  const kept = [];
  for (const tick of ranked) {
    if (kept.every((other) => Math.abs(scale(other) - scale(tick)) >= room)) kept.push(tick);
  }
  return kept;
}

function drawAxes(root, spec, inner, labels) {
  const xRoom = spec.x.labelAll && spec.x.scale.bandwidth ? 11 : spec.x.room || 62;
  const xTicks = ticksOf(spec.x, inner.width, xRoom);
  const yTicks = ticksOf(spec.y, inner.height, spec.y.room || 30);
  const center = spec.x.scale.bandwidth ? spec.x.scale.bandwidth() / 2 : 0;
  root.append("g").attr("class", "grid").selectAll("line").data(yTicks).join("line")
    .attr("x2", inner.width).attr("y1", (d) => spec.y.scale(d)).attr("y2", (d) => spec.y.scale(d));
  root.append("g").attr("class", "grid").selectAll("line")
    .data(spec.x.scale.bandwidth ? [] : xTicks).join("line").attr("y2", inner.height)
    .attr("x1", (d) => spec.x.scale(d) + center).attr("x2", (d) => spec.x.scale(d) + center);
  const shown = (value) => (labels.angle ? shortenMiddle(spec.x.format(value), MOST_LABEL) :
    spec.x.format(value));
  const xAxis = root.append("g").attr("class", "axis")
    .attr("transform", `translate(0,${inner.height})`)
    .call(d3.axisBottom(spec.x.scale).tickValues(xTicks).tickFormat(shown).tickSizeOuter(0));
  if (labels.angle) {
    xAxis.selectAll("text").attr("text-anchor", "end").attr("dy", "0.35em")
      .attr("x", -9).attr("y", 0)
      .attr("transform", `translate(0,${labels.angle === -90 ? 2 : 9}) rotate(${labels.angle})`);
  }
  root.append("g").attr("class", "axis")
    .call(d3.axisLeft(spec.y.scale).tickValues(yTicks).tickFormat(spec.y.format)
      .tickSizeOuter(0));
  const label = root.append("text").attr("class", "axis-label").attr("text-anchor", "middle")
    .attr("y", inner.height + labels.room - 8).text(spec.x.label);
  // Why not always the middle: on a phone a label can be longer than its axis.
  const half = label.node().getBBox().width / 2;
  label.attr("x", Math.min(inner.width / 2, inner.width - half));
  root.append("text").attr("class", "axis-label").attr("text-anchor", "middle")
    .attr("transform", `translate(${-63},${inner.height / 2}) rotate(-90)`).text(spec.y.label);
}

/// A horizontal line, with a word if there is one to say.
function referenceLine(chart, value, text) {
  const y = chart.y(value);
  if (!(y >= -1 && y <= chart.inner.height + 1)) return;
  chart.marks.append("line").attr("class", "reference").attr("x2", chart.inner.width)
    .attr("y1", y).attr("y2", y);
  if (!text) return;
  chart.marks.append("text").attr("class", "note").attr("x", chart.inner.width - 4)
    .attr("y", y > 16 ? y - 5 : y + 13).attr("text-anchor", "end").text(text);
}

/// points: {x, y, backend or color, title, lines, result}. The pointer and the arrow keys move
/// between them; Enter or a click opens the result.
function drawPoints(chart, points, size = 46) {
  const at = (point) => {
    const middle = chart.x.bandwidth ? chart.x.bandwidth() / 2 : 0;
    return [chart.x(point.x) + middle + (point.shift || 0), chart.y(point.y)];
  };
  const drawn = points.map((point) => ({...point, at: at(point)}))
    .filter((point) => point.at.every(Number.isFinite))
    .sort((a, b) => a.at[0] - b.at[0] || a.at[1] - b.at[1]);
  chart.marks.append("g").selectAll("path").data(drawn).join("path")
    .attr("class", (d) => `point ${d.color || colorClass(d.backend)} ${d.kind || ""}`)
    .attr("d", (d) => d3.symbol().size(size)
      .type(d.backend ? symbolOf(d.backend) : d3.symbolCircle)())
    .attr("transform", (d) => `translate(${d.at})`);
  inspect(chart, drawn);
}

/// Lets a person walk through marks that have a place `at`.
function inspect(chart, drawn) {
  if (!drawn.length) return;
  const ring = chart.root.append("circle").attr("class", "ring").attr("r", 8)
    .attr("display", "none");
  let current = -1;
  const show = (index) => {
    current = index;
    const point = drawn[index];
    ring.attr("display", null).attr("cx", point.at[0]).attr("cy", point.at[1]);
    const matrix = chart.root.node().getScreenCTM();
    const place = new DOMPoint(...point.at).matrixTransform(matrix);
    tooltip.show(place.x, place.y, point.title, point.lines);
  };
  const hide = () => { ring.attr("display", "none"); tooltip.hide(); };
  const nearest = (event) => {
    const [x, y] = d3.clientPoint(chart.root.node(), event);
    const distance = (point) => (point.at[0] - x) ** 2 + (point.at[1] - y) ** 2;
    const index = d3.scan(drawn, (a, b) => distance(a) - distance(b));
    return distance(drawn[index]) < 40 ** 2 ? index : -1;
  };
  const open = () => {
    if (current >= 0 && drawn[current].result) showResult(drawn[current].result);
  };
  const steps = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1};
  chart.svg.attr("tabindex", 0).attr("role", "application").attr("aria-label",
    `${chart.spec.label}: ${plural(drawn.length, "point")}; arrow keys go from one to the next, ` +
    "Enter shows the result")
    .on("pointermove pointerdown", () => {
      const index = nearest(d3.event);
      if (index < 0) hide(); else show(index);
    })
    .on("pointerleave blur", hide)
    .on("click", () => { if (nearest(d3.event) >= 0) open(); })
    .on("keydown", () => {
      const key = d3.event.key;
      if (key === "Escape") hide();
      if (!(key in steps) && !["Home", "End", "Enter"].includes(key)) return;
      // Why for Enter too: it would press the button that gets the focus.
      d3.event.preventDefault();
      if (key === "Enter") {
        open();
        return;
      }
      const next = key === "Home" ? 0 : key === "End" ? drawn.length - 1 : current + steps[key];
      show(Math.max(0, Math.min(drawn.length - 1, next)));
      const {title, lines} = drawn[current];
      announce([title, ...lines.map((line) => line.join(" "))].join(", "));
    });
}

/// Backends with their colours and symbols.
function legend(backends) {
  return element("ul", {class: "legend"}, backends.map((backend) => {
    const item = element("li");
    d3.select(item).append("svg").attr("width", 14).attr("height", 14)
      .attr("viewBox", "-7 -7 14 14").attr("aria-hidden", "true").append("path")
      .attr("class", `point ${colorClass(backend)}`)
      .attr("d", d3.symbol().type(symbolOf(backend)).size(52)());
    item.append(backend);
    return item;
  }));
}

const backendsIn = (results) => BACKENDS.filter((b) => results.some((r) => r.backend === b));

/// Limits of positive values with some air, for a logarithmic scale.
function logDomain(values, air = 1.25) {
  const [least, most] = d3.extent(values.filter((value) => value > 0));
  return [least / air, most * air];
}
