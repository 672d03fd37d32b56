// Follows the runs in progress: asks the server that sent this page, every two seconds.
"use strict";

function liveRun(run) {
  const box = element("article", "event");
  const title = element("p");
  title.append(element("b", "", run.run_id), " ", element("span", `chip ${run.running ? "busy" : "none"}`, run.running ? "RUNNING" : "IDLE"));
  box.append(title);
  run.arms.forEach((arm) => {
    const words = `${arm.name}: ${arm.state}, ${arm.done} of ${arm.asked || "?"} answers`;
    const bar = element("div", "progress");
    const fill = element("i");
    fill.style.width = `${arm.asked ? Math.min(100, (arm.done / arm.asked) * 100) : 0}%`;
    bar.append(fill);
    box.append(element("p", "sub", arm.message ? `${words} — ${arm.message}` : words), bar);
  });
  if (run.log) box.append(element("p", "sub", run.log_name), element("pre", "log", run.log));
  return box;
}

async function follow() {
  const state = document.getElementById("live-state");
  try {
    const answer = await fetch("/api/live", { cache: "no-store" });
    const live = await answer.json();
    state.textContent = live.runs.length ? `${live.results}, ${live.now}` : `No run is going on in ${live.results}. ${live.now}`;
    document.getElementById("live-runs").replaceChildren(...live.runs.map(liveRun));
  } catch {
    state.textContent = "The server does not answer.";
  }
  setTimeout(follow, 2000);
}

follow();
