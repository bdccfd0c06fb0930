-- Snapshots that are marked as bad are found without reading the others: the catalog in the store lists
-- them. Binaries of version 2 can work with this schema.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (18, 2);
CREATE INDEX "snapshot_bad" ON "snapshots" ("shard_id") WHERE (bad <> ''::text);

-- +goose Down
DROP INDEX "snapshot_bad";
DELETE FROM schema_versions WHERE version = 18;
