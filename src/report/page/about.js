// Where and with what the results were measured, and whose library draws the plots.

function environmentOf(file) {
  const device = Object.entries(file.device).map(([key, value]) =>
    [key, key.endsWith("_bytes") ? `${formatSi(Number(value))}B` : value]);
  return element("section", {class: "environment"}, element("h3", {}, file.path),
    element("div", {class: "columns"},
      device.length ? pairs("Device", [...device, ["SM clock while timing", file.sm_mhz ?
        `${file.sm_mhz[0]} to ${file.sm_mhz[1]} MHz` : null]]) : null,
      pairs("Host", [["name", file.hostname], ["CPU", file.cpu], ["cores", String(file.cores)],
                     ["features", file.features], ["compiler", file.compiler]]),
      pairs("Run", [["created", file.created], ["attnbench", `${file.version} (${file.git})`],
                    ["fingerprint", file.fingerprint],
                    ["state", file.unfinished ? "a journal: the run is not finished" : null]])),
    file.command.length ? commandLine(file.command.map(quoted).join(" ")) : null);
}

/// A word of a command line as a shell takes it.
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

function drawEnvironment(container) {
  container.append(...DATA.files.map(environmentOf),
    element("details", {}, element("summary", {}, "Licence of D3, which draws the plots"),
      element("pre", {}, document.getElementById("d3-licence").textContent.trim())));
}
