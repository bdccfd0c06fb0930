-- The reports of drills, and how often a policy wants them. Binaries of version 2 can work with this
-- schema: they do not show drills, and keep what a policy has.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (21, 2);
ALTER TABLE policies ADD COLUMN drill bigint NOT NULL DEFAULT 0; -- microseconds
CREATE TABLE drills (
    id        uuid    PRIMARY KEY,
    shard     bigint  NOT NULL REFERENCES shards (id) ON DELETE CASCADE,
    snapshot  uuid    NOT NULL, -- it may be forgotten since
    started   bigint  NOT NULL, -- microseconds since 1970
    passed    boolean NOT NULL,
    report    bytea   NOT NULL,
    signature bytea   NOT NULL
);
CREATE INDEX drills_shard ON drills (shard, started, passed);

-- +goose Down
DROP TABLE drills;
ALTER TABLE policies DROP COLUMN drill;
DELETE FROM schema_versions WHERE version = 21;
