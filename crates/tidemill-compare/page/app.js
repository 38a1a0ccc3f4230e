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
// Answers are sent one after the other.
let sending = Promise.resolve();
let unsent = 0;

async function start() {
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

// Loads the comparisons that are not in the queue yet.
async function refill() {
  const { assignments, progress } = await source.next();
  view.showProgress(progress);
  const known = new Set([...queue, ...given.map((one) => one.comparison)].map((one) => one.key));
  for (const comparison of assignments.filter((one) => !known.has(one.key))) {
    comparison.pictures = await loadPictures(source.pictureAddress, comparison);
    comparison.answers = new Set(comparison.answered);
    queue.push(comparison);
  }
}

function nextQuestion(comparison) {
  return questions.findIndex((_, number) => !comparison.answers.has(number));
}

function show() {
  const comparison = queue[0];
  if (!comparison) {
    view.showDone(source.finish);
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

// Sends an answer, and asks for more comparisons after the last one of a comparison. An answer is
// sent again until it is stored.
function send(judgement, isComplete) {
  unsent += 1;
  sending = sending.then(async () => {
    for (let pause = 500; ; pause = Math.min(2 * pause, 10_000)) {
      try {
        await source.judge(judgement);
        if (isComplete) await refill();
        break;
      } catch (error) {
        if (error instanceof Problem && error.isFinal) {
          view.showProblem(error, start);
          return;
        }
        view.showSaving("The last answer is not saved yet. Trying again …");
        await new Promise((resolve) => setTimeout(resolve, pause));
      }
    }
    unsent -= 1;
    view.showSaving("");
    // Without comparisons it is over only when all answers are stored.
    if (view.isWaiting && (queue.length > 0 || unsent === 0)) show();
  });
}

addEventListener("beforeunload", (event) => {
  if (unsent > 0) event.preventDefault();
});

start();
