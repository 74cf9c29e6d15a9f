// The roofline: arithmetic intensity against rate, under what the device can do.

/// Values that are the same measurement: within two percent.
function distinct(values) {
  const kept = [];
  for (const value of values.filter(isNumber).sort((a, b) => a - b)) {
    if (!kept.length || value > kept[kept.length - 1] * 1.02) kept.push(value);
  }
  return kept;
}

function drawRoofs(chart, memory, compute) {
  const [from, to] = chart.x.domain();
  const top = chart.y.domain()[1];
  const line = (points) => chart.marks.append("polyline").attr("class", "roof")
    .attr("points", points.map(([x, y]) => `${chart.x(x)},${chart.y(y)}`).join(" "));
  const label = (x, y, text, anchor, angle = 0) => chart.marks.append("text").attr("class", "note")
    .attr("text-anchor", anchor)
    .attr("transform", `translate(${chart.x(x)},${chart.y(y)}) rotate(${angle}) translate(0,-6)`)
    .text(text);
  const best = d3.max(memory);
  const highest = d3.max(compute) || top;
  for (const bytes of memory) {
    line([[from, bytes * from], [Math.min(to, highest / bytes), Math.min(to * bytes, highest)]]);
    const slope = -Math.atan2(chart.y(bytes * from) - chart.y(bytes * from * 10),
                              chart.x(from * 10) - chart.x(from)) * 180 / Math.PI;
    label(from * 1.15, bytes * from * 1.15, `memory ${formatBytes(bytes)}`, "start", slope);
  }
  for (const flops of compute) {
    line([[best ? Math.max(from, flops / best) : from, flops], [to, flops]]);
    label(to, flops, `matrix ${formatFlops(flops)}`, "end");
  }
}

function drawRoofline(container) {
  const results = selection.results().filter((r) => r.throughput && r.throughput.bytes > 0 &&
    r.throughput.flops > 0 && METRICS.flops.of(r) > 0);
  if (!results.length) {
    container.append(absent("No selected result has a time and counted work, so there is no rate " +
      "to plot (a run with --no-timing has none)."));
    return;
  }
  const intensity = (r) => r.throughput.flops / r.throughput.bytes;
  const memory = distinct(results.map((r) => ceilingsOf(r).bytes));
  const compute = distinct(results.map((r) => ceilingsOf(r).flops));
  const xs = logDomain(results.map(intensity), 2);
  const knees = memory.flatMap((bytes) => compute.map((flops) => flops / bytes * 2));
  const ys = logDomain([...results.map(METRICS.flops.of), ...compute], 1.6);
  container.append(legend(backendsIn(results)));
  const chart = plot(container, {
    label: "Roofline", height: Math.min(520, Math.max(300, container.clientWidth * 0.5)),
    x: {scale: d3.scaleLog().domain([xs[0], Math.max(xs[1], d3.max(knees) || 0)]),
        label: "arithmetic intensity, FLOPs per byte of unavoidable traffic",
        format: (value) => (value < 1 ? String(value) : formatTick(value))},
    y: {scale: d3.scaleLog().domain(ys), label: "FLOP/s", format: formatTick},
  });
  drawRoofs(chart, memory, compute);
  drawPoints(chart, results.map((result) => ({
    x: intensity(result), y: METRICS.flops.of(result), backend: result.backend, result,
    title: titleOf(result), lines: describe(result)})));
  const missing = [memory.length ? null : "memory", compute.length ? null : "compute"];
  if (missing.some(Boolean)) {
    container.append(absent(`The ${missing.filter(Boolean).join(" and the ")} ceiling is not in ` +
      "this file: older versions stored only the share of the ceiling that bounds a result."));
  }
}
