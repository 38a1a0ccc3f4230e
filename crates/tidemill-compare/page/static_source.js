// Comparisons from files, for a host that only serves files. Answers stay in this browser until the
// rater sends the file with them. The link has the rater's number and token behind the #; each
// answer is signed with the token.

const STORED = "tidemill-compare-answers";

export class Problem extends Error {
  constructor(message, isFinal) {
    super(message);
    this.isFinal = isFinal;
  }
}

async function load(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Problem("Open the link that you were given.", true);
  return response.json();
}

const toHex = (bytes) => [...new Uint8Array(bytes)].map((byte) => byte.toString(16).padStart(2, "0")).join("");

async function signer(token) {
  const encoder = new TextEncoder();
  const secret = await crypto.subtle.digest("SHA-256", encoder.encode(token));
  const key = await crypto.subtle.importKey("raw", secret, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return async ({ assignment, question, answer, milliseconds }) => {
    const text = [assignment, question, answer, milliseconds].join("\n");
    return toHex(await crypto.subtle.sign("HMAC", key, encoder.encode(text)));
  };
}

export async function openSource() {
  const [pack, token] = location.hash.slice(1).split(".");
  if (!pack || !token) throw new Problem("Open the link that you were given.", true);
  if (!crypto.subtle) throw new Problem("Open the link with https://, so that answers can be signed.", true);
  const [study, assignments, sign] = [
    await load("study.json"),
    await load(`packs/${encodeURIComponent(pack)}.json`),
    await signer(token),
  ];
  const stored = `${STORED}-${pack}`;
  const answers = new Map(JSON.parse(localStorage.getItem(stored) ?? "[]"));
  const answered = (assignment) =>
    study.questions.map((_, number) => number).filter((number) => answers.has(`${assignment.key} ${number}`));
  const isOpen = (assignment) => answered(assignment).length < study.questions.length;
  return {
    study,
    needsName: false,
    pictureAddress: (key) => `pictures/${key}.webp`,
    async next() {
      const open = assignments.filter(isOpen);
      const next = open.slice(0, 2).map((one) => ({ ...one, answered: answered(one) }));
      return { assignments: next, is_waiting: false, progress: { judged: assignments.length - open.length, left: open.length } };
    },
    async judge(judgement) {
      const line = { ...judgement, signature: await sign(judgement) };
      answers.set(`${judgement.assignment} ${judgement.question}`, line);
      localStorage.setItem(stored, JSON.stringify([...answers]));
    },
    finish: {
      text: "Download the file with your answers, and send it to whoever gave you the link.",
      download() {
        const lines = [...answers.values()].map((line) => `${JSON.stringify(line)}\n`);
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
        link.download = `answers-${pack}.jsonl`;
        link.click();
      },
    },
  };
}
