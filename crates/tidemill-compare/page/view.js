// What a rater sees. All text of the study is set as text, never as HTML.

const byId = (id) => document.getElementById(id);

export class View {
  isWaiting = false;
  onAnswer = () => {};
  onBack = () => {};

  constructor() {
    for (const [id, side] of [
      ["left", "left"],
      ["choose-left", "left"],
      ["tie", "tie"],
      ["choose-right", "right"],
      ["right", "right"],
    ]) {
      byId(id).addEventListener("click", () => this.#answer(side));
    }
    byId("back").addEventListener("click", () => this.onBack());
    byId("done-back").addEventListener("click", () => this.onBack());
    byId("zoom").addEventListener("click", () => this.#toggleZoom());
    byId("close").addEventListener("click", () => this.#toggleZoom());
    addEventListener("keydown", (event) => this.#press(event));
  }

  #press(event) {
    const isTyping = event.target instanceof HTMLInputElement;
    if (isTyping || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowLeft: () => this.#answer("left"),
      ArrowRight: () => this.#answer("right"),
      ArrowDown: () => this.#answer("tie"),
      Backspace: () => this.onBack(),
      z: () => this.#toggleZoom(),
      Z: () => this.#toggleZoom(),
    };
    const isDone = !byId("done-back").hidden && event.key === "Backspace";
    if ((byId("judge").hidden && !isDone) || !actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  #answer(side) {
    if (!this.isWaiting) this.onAnswer(side);
  }

  #toggleZoom() {
    const large = byId("large");
    if (large.open || this.isWaiting) {
      large.close();
      return;
    }
    const copies = [...document.querySelectorAll("#judge .picture img")].map((picture) => picture.cloneNode());
    large.querySelector(".pictures").replaceChildren(...copies);
    large.showModal();
  }

  showStudy(study, finish) {
    document.title = study.title;
    byId("title").textContent = study.title;
    byId("tie").hidden = !study.ties;
    byId("download").hidden = !finish.download;
    byId("download").onclick = finish.download;
  }

  showProgress({ judged, left }) {
    byId("bar").max = Math.max(judged + left, 1);
    byId("bar").value = judged;
    byId("count").textContent = `${judged} of ${judged + left}`;
  }

  // The pictures are decoded already, so nothing flickers.
  showComparison(comparison, question, canCorrect) {
    this.isWaiting = false;
    // Enlarged pictures are those of the comparison before.
    byId("large").close();
    byId("message").hidden = true;
    byId("done-back").hidden = true;
    byId("judge").hidden = false;
    byId("prompt").textContent = comparison.prompt;
    byId("question").textContent = question;
    byId("left").replaceChildren(comparison.pictures.left);
    byId("right").replaceChildren(comparison.pictures.right);
    byId("back").disabled = !canCorrect;
  }

  showSaving(text) {
    byId("saving").textContent = text;
  }

  showWaiting() {
    this.isWaiting = true;
  }

  showDone(finish, isWaitingForOthers, canCorrect) {
    this.isWaiting = false;
    if (isWaitingForOthers) {
      this.#showMessage("Nothing is left right now. Thank you!", `${finish.text} ${finish.later}`);
    } else {
      this.#showMessage("That is all. Thank you!", finish.text);
    }
    byId("done-back").hidden = !canCorrect;
  }

  askName(enter) {
    this.#showMessage("Welcome", "You will see two pictures at a time, and say which is better.");
    byId("sign-in").hidden = false;
    byId("name").onkeydown = (event) => {
      if (event.key === "Enter") byId("enter").click();
    };
    byId("name").focus();
    byId("enter").onclick = async () => {
      byId("enter").disabled = true;
      try {
        await enter(byId("name").value);
        byId("sign-in").hidden = true;
      } catch (error) {
        byId("message-text").textContent = error.message;
      }
      byId("enter").disabled = false;
    };
  }

  showProblem(error, retry) {
    this.#showMessage("This does not work yet", error.message);
    byId("retry").hidden = error.isFinal === true;
    byId("retry").onclick = () => {
      byId("retry").hidden = true;
      retry();
    };
  }

  #showMessage(title, text) {
    byId("large").close();
    byId("judge").hidden = true;
    byId("message").hidden = false;
    byId("retry").hidden = true;
    byId("done-back").hidden = true;
    byId("message-title").textContent = title;
    byId("message-text").textContent = text;
  }
}

// Both pictures of a comparison, loaded and decoded.
export async function loadPictures(addressOf, comparison) {
  const load = async (key, side) => {
    const picture = new Image();
    picture.alt = `${side} picture`;
    picture.draggable = false;
    picture.src = addressOf(key);
    await picture.decode();
    return picture;
  };
  const [left, right] = await Promise.all([load(comparison.left, "Left"), load(comparison.right, "Right")]);
  return { left, right };
}
