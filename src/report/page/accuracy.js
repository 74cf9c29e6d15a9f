// Error against speed: is the fast kernel the wrong one?

const accuracyState = {x: "", y: "err_ratio"};

function drawAccuracy(container) {
  const withError = selection.results().filter((r) => r.error);
  const speeds = ["roofline", "flops", "bytes", "time"]
    .filter((key) => withError.some((r) => isNumber(METRICS[key].of(r))));
  const errors = ["err_ratio", "max_abs", "rms_rel"]
    .filter((key) => withError.some((r) => METRICS[key].of(r) > 0));
  if (!errors.length) {
    container.append(absent("No selected result has an error to plot: nothing was compared, or " +
      "every output equals the reference."));
    return;
  }
  if (accuracyState.x !== "backend" && !speeds.includes(accuracyState.x)) {
    accuracyState.x = speeds[0] || "backend";
  }
  if (!errors.includes(accuracyState.y)) accuracyState.y = errors[0];
  const redraw = () => redrawView("accuracy");
  container.append(element("div", {class: "controls"},
    chooser("Show", errors.map((key) => [key, METRICS[key].name]), accuracyState.y,
      (y) => { accuracyState.y = y; redraw(); }),
    chooser("against", [...speeds.map((key) => [key, METRICS[key].name]), ["backend", "backend"]],
      accuracyState.x, (x) => { accuracyState.x = x; redraw(); })));
  if (!speeds.length) {
    container.append(absent("The selected results have no times, so there is no speed: errors " +
      "stand by backend."));
  }
  const y = METRICS[accuracyState.y];
  const byBackend = accuracyState.x === "backend";
  const x = byBackend ? null : METRICS[accuracyState.x];
  const results = withError.filter((r) => y.of(r) > 0 && (byBackend || isNumber(x.of(r))));
  const exact = withError.filter((r) => y.of(r) === 0).length;
  const backends = backendsIn(results);
  container.append(legend(backends));
  const xScale = byBackend ? d3.scaleBand().domain(backends).padding(0.2) :
    accuracyState.x === "roofline" ?
      d3.scaleLinear().domain([0, Math.max(100, d3.max(results, x.of) * 1.05)]) :
      d3.scaleLog().domain(logDomain(results.map(x.of)));
  const limits = accuracyState.y === "err_ratio" ? [2.2] : [];
  const chart = plot(container, {
    label: "Error against speed",
    x: {scale: xScale, label: byBackend ? "backend" : x.name,
        ticks: byBackend ? backends : undefined, room: byBackend ? 30 : 62,
        format: (value) => (byBackend ? shorten(value, Math.floor(xScale.step() / 6.8)) :
          tickText(x, value))},
    y: {scale: d3.scaleLog().domain(logDomain([...results.map(y.of), ...limits])), label: y.name,
        format: (value) => (accuracyState.y === "err_ratio" ? d3.format("~g")(value) :
          formatError(value))},
  });
  if (accuracyState.y === "err_ratio") {
    referenceLine(chart, 2, "twice the error of correct rounding");
    referenceLine(chart, 1, "as good as the storage precision allows");
  }
  // Why spread by index: hundreds of points of one backend would hide each other.
  const spread = byBackend ? xScale.bandwidth() * 0.8 : 0;
  drawPoints(chart, results.map((result, i) => ({
    x: byBackend ? result.backend : x.of(result), y: y.of(result), backend: result.backend, result,
    shift: spread * ((i * 0.618034) % 1 - 0.5), title: titleOf(result), lines: describe(result),
    kind: result.status === "incorrect" ? "wrong" : ""})), 36);
  if (exact) container.append(element("p", {class: "hint"}, `${plural(exact, "result")} with ` +
    `${y.name} 0 cannot stand on a logarithmic axis.`));
}
