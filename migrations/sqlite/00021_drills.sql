-- The reports of drills, and how often a policy wants them. Binaries of version 11 can work with this
-- schema: they do not show drills, and keep what a policy has.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (21, 11);
ALTER TABLE policies ADD COLUMN drill INTEGER NOT NULL DEFAULT 0; -- microseconds
CREATE TABLE drills (
    id        TEXT    NOT NULL PRIMARY KEY, -- as UUID
    shard     INTEGER NOT NULL REFERENCES shards (id) ON DELETE CASCADE,
    snapshot  TEXT    NOT NULL, -- it may be forgotten since
    started   INTEGER NOT NULL, -- microseconds since 1970
    passed    INTEGER NOT NULL,
    report    BLOB    NOT NULL,
    signature BLOB    NOT NULL
) STRICT;
CREATE INDEX drills_shard ON drills (shard, started, passed);

-- +goose Down
DROP TABLE drills;
ALTER TABLE policies DROP COLUMN drill;
DELETE FROM schema_versions WHERE version = 21;
