-- One study. Times are Unix milliseconds.

CREATE TABLE study (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    config TEXT NOT NULL,
    -- Set once all pictures and comparisons are there.
    complete INTEGER NOT NULL DEFAULT 0,
    admin_token_hash BLOB
);

CREATE TABLE prompt (
    id INTEGER PRIMARY KEY,
    text TEXT NOT NULL,
    category TEXT
);

-- Pictures of a model for a prompt, and damaged ones for attention checks.
CREATE TABLE picture (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    prompt INTEGER NOT NULL REFERENCES prompt,
    model INTEGER NOT NULL,
    image INTEGER NOT NULL,
    is_damaged INTEGER NOT NULL DEFAULT 0,
    content BLOB NOT NULL,
    UNIQUE (prompt, model, image, is_damaged)
);

CREATE TABLE comparison (
    id INTEGER PRIMARY KEY,
    prompt INTEGER NOT NULL REFERENCES prompt,
    -- In a check the second one is damaged.
    first INTEGER NOT NULL REFERENCES picture,
    second INTEGER NOT NULL REFERENCES picture,
    is_check INTEGER NOT NULL,
    -- Raters who judged it or are about to.
    raters INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX comparison_by_need ON comparison (is_check, raters, id);

CREATE TABLE rater (
    id INTEGER PRIMARY KEY,
    token_hash BLOB NOT NULL UNIQUE,
    name TEXT,
    created INTEGER NOT NULL
);

-- A comparison that a rater was shown. Nobody is shown one twice.
CREATE TABLE assignment (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    rater INTEGER NOT NULL REFERENCES rater,
    comparison INTEGER NOT NULL REFERENCES comparison,
    first_is_left INTEGER NOT NULL,
    shown INTEGER NOT NULL,
    -- Whether it counts in comparison.raters. An assignment that lies too long does not.
    is_counted INTEGER NOT NULL DEFAULT 1,
    is_judged INTEGER NOT NULL DEFAULT 0,
    UNIQUE (rater, comparison)
);
CREATE INDEX assignment_open ON assignment (shown) WHERE is_counted = 1 AND is_judged = 0;
CREATE INDEX assignment_of_rater ON assignment (rater, is_judged);

CREATE TABLE judgement (
    assignment INTEGER NOT NULL REFERENCES assignment,
    question INTEGER NOT NULL,
    answer TEXT NOT NULL CHECK (answer IN ('left', 'right', 'tie')),
    judged INTEGER NOT NULL,
    -- How long the rater looked.
    milliseconds INTEGER NOT NULL,
    corrections INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (assignment, question)
) WITHOUT ROWID;
