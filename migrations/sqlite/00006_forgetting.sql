-- Snapshots that are forgotten, and packs that garbage collection has deleted. Binaries of version
-- 2 can work with this schema: the base of the next snapshot is the newest committed one, whether it
-- is forgotten or not, and the packs that are deleted are condemned.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (6, 2);
ALTER TABLE `snapshots` ADD COLUMN `forgotten` datetime NULL;
-- When the object of the pack was about to be deleted, in microseconds since 1970; 0: it is not. The
-- row remains until no batch can rely on the pack any more: a batch that relies on a condemned pack
-- is read again at once.
ALTER TABLE `packs` ADD COLUMN `deleted` integer NOT NULL DEFAULT (0);
CREATE INDEX packs_deleted ON packs (deleted) WHERE deleted <> 0;
-- Operators' reasons to keep snapshots. Exactly one of snapshot and shard is set.
CREATE TABLE holds (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    snapshot uuid    NULL REFERENCES snapshots (id),
    shard    INTEGER NULL REFERENCES shards (id),
    reason   text    NOT NULL,
    by       text    NOT NULL,
    since    INTEGER NOT NULL, -- microseconds since 1970
    CHECK ((snapshot IS NULL) <> (shard IS NULL))
);
CREATE INDEX holds_snapshot ON holds (snapshot);
CREATE INDEX holds_shard ON holds (shard);
-- Restores in progress: the snapshot's content is kept until the lease ends.
CREATE TABLE readings (
    id       uuid    NOT NULL PRIMARY KEY,
    snapshot uuid    NOT NULL,
    until    INTEGER NOT NULL -- microseconds since 1970
);
CREATE INDEX readings_snapshot ON readings (snapshot);
-- What operators and policies did to snapshots. Rows are only added.
CREATE TABLE log (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    time    INTEGER NOT NULL, -- microseconds since 1970
    by      text    NOT NULL,
    action  text    NOT NULL,
    subject text    NOT NULL,
    reason  text    NOT NULL,
    login   text    NOT NULL DEFAULT ('') -- the database's user, in Postgres; by is what bctl was told
);
CREATE INDEX log_subject ON log (subject);
-- Snapshots that were removed from the index. Objects of other unknown snapshots are never deleted.
CREATE TABLE removed_snapshots (id uuid NOT NULL PRIMARY KEY);

-- +goose Down
DROP TABLE removed_snapshots;
DROP TABLE log;
DROP TABLE readings;
DROP TABLE holds;
DROP INDEX packs_deleted;
ALTER TABLE `packs` DROP COLUMN `deleted`;
ALTER TABLE `snapshots` DROP COLUMN `forgotten`;
DELETE FROM schema_versions WHERE version = 6;
