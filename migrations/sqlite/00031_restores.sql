-- Restores that the restorers of a fleet share. Binaries of version 11 can work with this schema: they do not see them.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (31, 11);
CREATE TABLE restores (
    id       TEXT    NOT NULL PRIMARY KEY, -- as UUID
    snapshot TEXT    NOT NULL, -- it may be forgotten since
    site     TEXT    NOT NULL,
    target   BLOB    NOT NULL,
    request  BLOB    NOT NULL,
    started  INTEGER NOT NULL, -- microseconds since 1970
    open     INTEGER NOT NULL, -- tasks that are not settled
    begun    INTEGER NOT NULL DEFAULT 0, -- the task that makes the target is settled
    failed   TEXT    NOT NULL DEFAULT '',
    UNIQUE (site, target)
) STRICT;
CREATE TABLE restore_tasks (
    id          INTEGER PRIMARY KEY,
    restore     TEXT    NOT NULL REFERENCES restores (id) ON DELETE CASCADE,
    kind        INTEGER NOT NULL, -- index.RestoreTaskKind
    from_key    BLOB    NOT NULL,
    to_key      BLOB    NULL,     -- NULL: no end
    attempt     INTEGER NOT NULL DEFAULT 0,
    failures    INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER NOT NULL DEFAULT 0,
    worker      TEXT    NOT NULL DEFAULT '',
    recipient   TEXT    NOT NULL DEFAULT '',
    keys        BLOB    NULL,     -- sealed to recipient
    files       INTEGER NOT NULL DEFAULT 0,
    bytes       INTEGER NOT NULL DEFAULT 0,
    settled     INTEGER NOT NULL DEFAULT 0,
    result      BLOB    NOT NULL DEFAULT x'',
    reason      TEXT    NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX restore_tasks_restore ON restore_tasks (restore, id);
CREATE INDEX restore_tasks_open ON restore_tasks (id) WHERE NOT settled;
CREATE TABLE restore_refusals (
    restore      TEXT    NOT NULL REFERENCES restores (id) ON DELETE CASCADE,
    worker       TEXT    NOT NULL,
    reason       TEXT    NOT NULL,
    paused_until INTEGER NOT NULL,
    PRIMARY KEY (restore, worker)
) STRICT;

-- +goose Down
DROP TABLE restore_refusals;
DROP TABLE restore_tasks;
DROP TABLE restores;
DELETE FROM schema_versions WHERE version = 31;
