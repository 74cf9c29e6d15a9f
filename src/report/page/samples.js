// Every sample of a case: how they are distributed, and how they came one after the other.

const sampleState = {name: ""};

function drawSamples(container) {
  const timed = selection.results().filter((r) => r.timing && r.timing.samples_us.length);
  if (!timed.length) {
    container.append(absent("No selected result has samples."));
    return;
  }
  const cases = groupBy(timed, titleOf);
  if (!cases.has(sampleState.name)) {
    // The case in which noise is the largest.
    const worst = timed[d3.scan(timed, (a, b) => (b.timing.noise || 0) - (a.timing.noise || 0))];
    sampleState.name = titleOf(worst);
  }
  container.append(element("div", {class: "controls"},
    chooser("Case", [...cases.keys()].map((name) => [name, name]), sampleState.name, (name) => {
      sampleState.name = name;
      redrawView("samples");
    })));
  const results = cases.get(sampleState.name);
  container.append(legend(backendsIn(results)));
  const grid = element("div", {class: "panels"});
  container.append(grid);
  const places = ["Distribution, with quartiles and median", "In the order of time"].map((text) => {
    const place = element("figure", {}, element("figcaption", {}, text));
    grid.append(place);
    return place;
  });
  drawDistribution(places[0], results);
  drawOrder(places[1], results);
  const thinned = results.filter((r) => r.timing.samples_us.length < r.timing.num_samples);
  if (thinned.length) {
    const taken = d3.max(thinned, (r) => r.timing.num_samples);
    const drawn = d3.max(thinned, (r) => r.timing.samples_us.length);
    container.append(element("p", {class: "hint"}, `Of up to ${taken} samples ${drawn} are drawn, ` +
      "evenly spread; the result file has all."));
  }
}

/// Limits that hold all samples but the rare far ones, which are drawn at the edge.
function sampleDomain(results) {
  const all = results.flatMap((r) => r.timing.samples_us).sort((a, b) => a - b);
  const [low, high] = [d3.quantile(all, 0.005), d3.quantile(all, 0.985)];
  const air = (high - low) * 0.12 || high * 0.01;
  return [Math.max(0, Math.min(low, d3.min(results, (r) => r.timing.q1_us)) - air), high + air];
}

function drawDistribution(place, results) {
  const backends = backendsIn(results);
  const chart = plot(place, {
    label: "Distribution of the samples", height: Math.max(200, 70 + 62 * backends.length),
    x: {scale: d3.scaleLinear().domain(sampleDomain(results)).clamp(true), label: "time",
        format: (value) => tickText(METRICS.time, value), room: 84},
    y: {scale: d3.scaleBand().domain([...backends].reverse()).padding(0.2), label: "",
        ticks: [], format: String},
  });
  const lane = chart.y.bandwidth();
  for (const result of results) {
    const {samples_us, q1_us, q3_us, median_us} = result.timing;
    const top = chart.y(result.backend);
    const color = colorClass(result.backend);
    chart.marks.append("g").selectAll("circle").data(samples_us).join("circle")
      .attr("class", `sample ${color}`).attr("r", 2.2).attr("cx", (d) => chart.x(d))
      .attr("cy", (_, i) => top + lane * (0.3 + 0.65 * ((i * 0.618034) % 1)));
    chart.marks.append("rect").attr("class", `box ${color}`).attr("x", chart.x(q1_us))
      .attr("y", top).attr("width", Math.max(2, chart.x(q3_us) - chart.x(q1_us)))
      .attr("height", lane * 0.2);
    chart.marks.append("line").attr("class", "median").attr("x1", chart.x(median_us))
      .attr("x2", chart.x(median_us)).attr("y1", top - 2).attr("y2", top + lane * 0.2 + 2);
  }
  inspect(chart, results.map((result) => ({
    at: [chart.x(result.timing.median_us), chart.y(result.backend) + lane * 0.1], result,
    title: titleOf(result),
    lines: [...describe(result), ["quartiles", `${formatTime(result.timing.q1_us)} to ` +
      formatTime(result.timing.q3_us)], ["samples", String(result.timing.num_samples)]]})));
}

function drawOrder(place, results) {
  const most = d3.max(results, (r) => r.timing.num_samples);
  const chart = plot(place, {
    label: "Samples in the order of time",
    height: Math.max(200, 70 + 62 * backendsIn(results).length),
    x: {scale: d3.scaleLinear().domain([0, Math.max(1, most - 1)]), label: "sample",
        format: d3.format("~d"), whole: true},
    y: {scale: d3.scaleLinear().domain(sampleDomain(results)).clamp(true), label: "time",
        format: (value) => tickText(METRICS.time, value)},
  });
  for (const result of results) {
    const samples = result.timing.samples_us;
    const step = result.timing.num_samples / samples.length;
    chart.marks.append("path").attr("class", `line thin ${colorClass(result.backend)}`).attr("d",
      d3.line().x((_, i) => chart.x(i * step)).y((d) => chart.y(d))(samples));
  }
}
