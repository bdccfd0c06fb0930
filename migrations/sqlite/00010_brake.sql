-- The brake: what a run may delete without a confirmation, the runs that it has stopped, and who has
-- confirmed them. Binaries of version 2 can work with this schema, but do not stop: upgrade the
-- pruner and the committers.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (10, 2);
CREATE TABLE brake (
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    snapshots     INTEGER NOT NULL DEFAULT 50, -- percent of the good snapshots of a shard
    min_snapshots INTEGER NOT NULL DEFAULT 10,
    bytes         INTEGER NOT NULL DEFAULT 30, -- percent of the stored bytes
    min_bytes     INTEGER NOT NULL DEFAULT 1073741824,
    operators     INTEGER NOT NULL DEFAULT 1, -- how many must confirm
    window_began  INTEGER NOT NULL DEFAULT 0, -- microseconds since 1970
    deleted_bytes INTEGER NOT NULL DEFAULT 0  -- since then
);
INSERT INTO brake (id) VALUES (1);
CREATE TABLE stops (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    shard         INTEGER NOT NULL, -- 0: the repository
    by            text   NOT NULL,
    snapshots     blob   NOT NULL, -- the ids of those that would be forgotten, 16 bytes each
    of_snapshots  INTEGER NOT NULL,
    bytes         INTEGER NOT NULL,
    of_bytes      INTEGER NOT NULL,
    earlier_bytes INTEGER NOT NULL, -- were deleted before, within the window
    since         INTEGER NOT NULL, -- microseconds since 1970
    rejected      text   NOT NULL DEFAULT '' -- by whom
);
-- Rows outlive their stops, whose ids are not used again.
CREATE TABLE confirmations (
    stop     INTEGER NOT NULL,
    identity text   NOT NULL, -- the name in the operator's certificate, or what bctl was told
    time     INTEGER NOT NULL, -- microseconds since 1970
    PRIMARY KEY (stop, identity)
);

-- +goose Down
DROP TABLE confirmations;
DROP TABLE stops;
DROP TABLE brake;
DELETE FROM schema_versions WHERE version = 10;
