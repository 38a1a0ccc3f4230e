// Comparisons from the server. The rater's token is in the link, behind the #, where no server and
// no log sees it.

const STORED = "tidemill-compare-token";

export class Problem extends Error {
  constructor(message, isFinal) {
    super(message);
    this.isFinal = isFinal;
  }
}

function takeToken() {
  const given = location.hash.slice(1);
  if (given) {
    localStorage.setItem(STORED, given);
    history.replaceState(null, "", location.pathname);
  }
  return localStorage.getItem(STORED);
}

async function request(address, token, body) {
  const response = await fetch(address, {
    method: body === undefined ? "GET" : "POST",
    headers: {
      ...(token && { Authorization: `Bearer ${token}` }),
      ...(body !== undefined && { "Content-Type": "application/json" }),
    },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (response.ok) return response.json();
  const { error } = await response.json().catch(() => ({ error: response.statusText }));
  const isTemporary = response.status === 429 || response.status >= 500;
  throw new Problem(error, !isTemporary);
}

async function isValid(token) {
  try {
    await request("/api/next", token, {});
    return true;
  } catch (error) {
    if (error instanceof Problem && error.isFinal) return false;
    throw error;
  }
}

// Another link in the same tab is another rater.
addEventListener("hashchange", () => location.reload());

export async function openSource() {
  let token = takeToken();
  const study = await request("/api/study");
  if (token && !(await isValid(token))) {
    // It is of another study at this address.
    localStorage.removeItem(STORED);
    token = null;
  }
  if (!token && !study.sign_in) throw new Problem("Open the link that you were given.", true);
  return {
    study,
    needsName: !token,
    pictureAddress: (key) => `/picture/${key}`,
    async signIn(name) {
      token = (await request("/api/sign-in", null, { name })).token;
      localStorage.setItem(STORED, token);
    },
    next: () => request("/api/next", token, {}),
    judge: (judgement) => request("/api/judge", token, judgement),
    finish: {
      text: "All your answers are saved. You can close this page.",
      later: "Other raters are looking at the last pairs. If they stop, some will be left: come back later.",
    },
  };
}
