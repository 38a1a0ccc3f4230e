// The way of a rater through the comparisons. `source.js` gives comparisons and takes answers;
// `view.js` shows them.

import { Problem, openSource } from "./source.js";
import { View, loadPictures } from "./view.js";

const view = new View();
// Comparisons whose pictures are loaded. The first one is shown.
const queue = [];
// The last answers of this visit, for corrections.
const given = [];
const MOST_CORRECTIONS = 20;
let source;
let questions;
let shownAt = 0;
// Answers are sent one after the other, and comparisons loaded one after the other.
let sending = Promise.resolve();
let loading = Promise.resolve();
// Answers that are not stored yet, and loads that are not done.
let unsent = 0;
let unloaded = 0;
// Whether other raters have comparisons that may be left for this one.
let isWaitingForOthers = false;

async function start() {
  queue.length = 0;
  given.length = 0;
  view.onAnswer = answer;
  view.onBack = correctLast;
  try {
    source = await openSource();
    questions = source.study.questions;
    view.showStudy(source.study, source.finish);
    if (source.needsName) {
      view.askName(async (name) => {
        await source.signIn(name);
        await refill();
        show();
      });
      return;
    }
    await refill();
    show();
  } catch (error) {
    view.showProblem(error, start);
  }
}

const isKnown = (key) => [...queue, ...given.map((one) => one.comparison)].some((one) => one.key === key);

// Loads the comparisons that are not in the queue yet.
async function refill() {
  const next = await source.next();
  isWaitingForOthers = next.is_waiting;
  view.showProgress(next.progress);
  for (const comparison of next.assignments) {
    if (isKnown(comparison.key)) continue;
    const pictures = await loadPictures(source.pictureAddress, comparison);
    if (!isKnown(comparison.key)) {
      queue.push({ ...comparison, pictures, answers: new Set(comparison.answered) });
    }
  }
}

function nextQuestion(comparison) {
  return questions.findIndex((_, number) => !comparison.answers.has(number));
}

function show() {
  const comparison = queue[0];
  if (!comparison) {
    view.showDone(source.finish, isWaitingForOthers, given.length > 0);
    return;
  }
  shownAt = performance.now();
  view.showComparison(comparison, questions[nextQuestion(comparison)], given.length > 0);
}

function answer(side) {
  const comparison = queue[0];
  if (!comparison || (side === "tie" && !source.study.ties)) return;
  const question = nextQuestion(comparison);
  const milliseconds = Math.round(performance.now() - shownAt);
  comparison.answers.add(question);
  given.push({ comparison, question });
  if (given.length > MOST_CORRECTIONS) given.shift();
  const isComplete = nextQuestion(comparison) < 0;
  if (isComplete) queue.shift();
  send({ assignment: comparison.key, question, answer: side, milliseconds }, isComplete);
  if (queue.length > 0) show();
  else view.showWaiting();
}

// Goes back to the last answered question.
function correctLast() {
  const last = given.pop();
  if (!last) return;
  last.comparison.answers.delete(last.question);
  if (queue[0] !== last.comparison) queue.unshift(last.comparison);
  show();
}

// Sends an answer, and asks for more comparisons after the last one of a comparison.
function send(judgement, isComplete) {
  unsent += 1;
  if (isComplete) unloaded += 1;
  sending = sending
    .then(() => repeat(() => source.judge(judgement), "The last answer is not saved yet. Trying again …"))
    .catch((error) => view.showProblem(error, start))
    .finally(() => {
      unsent -= 1;
      if (isComplete) load();
      showIfReady();
    });
}

function load() {
  loading = loading
    .then(() => repeat(refill, "The next pictures are not loaded yet. Trying again …"))
    .catch((error) => view.showProblem(error, start))
    .finally(() => {
      unloaded -= 1;
      showIfReady();
    });
}

// Does something again until it succeeds, or can never succeed.
async function repeat(act, message) {
  for (let pause = 500; ; pause = Math.min(2 * pause, 10_000)) {
    try {
      await act();
      view.showSaving("");
      return;
    } catch (error) {
      if (error instanceof Problem && error.isFinal) throw error;
      view.showSaving(message);
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
}

// Without comparisons it is over only when all is stored and loaded.
function showIfReady() {
  if (view.isWaiting && (queue.length > 0 || unsent + unloaded === 0)) show();
}

addEventListener("beforeunload", (event) => {
  if (unsent > 0) event.preventDefault();
});

start();
