// The administrator's page: how far the study is, and links for raters.

const byId = (id) => document.getElementById(id);
const STORED = "tidemill-compare-admin-token";
const token = location.hash.slice(1) || sessionStorage.getItem(STORED) || "";
sessionStorage.setItem(STORED, token);
history.replaceState(null, "", location.pathname);

async function request(address, body) {
  const response = await fetch(address, {
    method: body ? "POST" : "GET",
    headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
    body: body && JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

function row(cells) {
  const line = document.createElement("tr");
  for (const text of cells) {
    const cell = document.createElement("td");
    cell.textContent = text;
    line.append(cell);
  }
  return line;
}

async function refresh() {
  try {
    const { raters, judged, wanted } = await request("/api/admin/progress");
    byId("state").textContent = `${judged} of ${wanted} judgements`;
    byId("bar").max = Math.max(wanted, 1);
    byId("bar").value = judged;
    byId("raters").replaceChildren(...raters.map((one) => row([one.rater, one.name ?? "", one.judged])));
  } catch (error) {
    byId("state").textContent = error.message;
  }
}

byId("invite").addEventListener("click", async () => {
  try {
    const { tokens } = await request("/api/admin/raters", { count: Number(byId("number").value) });
    byId("links").value = tokens.map((one) => `${location.origin}/#${one}`).join("\n");
    await refresh();
  } catch (error) {
    byId("state").textContent = error.message;
  }
});

refresh();
setInterval(refresh, 5000);
