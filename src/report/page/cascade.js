// Where a pass of its own over a shared prefix pays.

const cascadeState = {panels: MOST_PANELS};

function drawCascade(container) {
  const rows = DATA.files[selection.file].cascade
    .filter((row) => (selection.scenario === "" || row.scenario === selection.scenario) &&
      (!selection.backends.size || selection.backends.has(row.backend)));
  if (!rows.length) {
    container.append(absent("No selected case was timed both with cascade.mode always and never."));
    return;
  }
  container.append(legend(backendsIn(rows)));
  const nameOf = (row) => `${row.scenario} · ${row.case}`;
  drawPanels(container, [...groupBy(rows, nameOf).values()], cascadeState,
    () => redrawView("cascade"), (panel) => nameOf(panel[0]),
    (place, panel) => drawCascadePanel(place, panel,
      rows.filter((row) => row.scenario === panel[0].scenario)));
  container.append(simpleTable(["case", "backend", "pays from a prefix of"], rows.map((row) =>
    [`${row.scenario}/${row.case}`, row.backend,
     row.pays_from === null ? "never" : `${row.pays_from} tokens`]),
    {label: "prefix from which a pass of its own pays"}));
}

/// `neighbours`: the rows of the scenario, whose scales this panel has.
function drawCascadePanel(place, rows, neighbours) {
  const speedups = neighbours.flatMap((row) => row.speedup.map(([, value]) => value));
  const prefixes = [...new Set(neighbours.flatMap((row) => row.speedup.map(([prefix]) => prefix)))]
    .sort((a, b) => a - b);
  const chart = plot(place, {
    label: "Speed-up of cascade attention against the shared prefix",
    x: {scale: d3.scaleLog().base(2).domain(logDomain(prefixes, 1.2)), ticks: prefixes, room: 44,
        label: "cascade.common_prefix_len", format: formatCount},
    y: {scale: d3.scaleLinear().domain([Math.min(0.8, d3.min(speedups)) * 0.95,
          Math.max(1.2, d3.max(speedups)) * 1.05]),
        label: "time without / time with", format: d3.format(".2~f")},
  });
  referenceLine(chart, 1, "");
  for (const row of rows) {
    chart.marks.append("path").attr("class", `line ${colorClass(row.backend)}`).attr("d",
      d3.line().x(([prefix]) => chart.x(prefix)).y(([, value]) => chart.y(value))(row.speedup));
  }
  drawPoints(chart, rows.flatMap((row) => row.speedup.map(([prefix, value]) => ({
    x: prefix, y: value, backend: row.backend, title: `${row.scenario}/${row.case}`,
    lines: [["backend", row.backend], ["prefix", `${prefix} tokens`],
            ["speed-up", `${value.toFixed(2)}×`]]}))));
}
