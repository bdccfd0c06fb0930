-- Snapshots that are marked as bad are found without reading the others: the catalog in the store lists
-- them. Binaries of version 11 can work with this schema.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (18, 11);
CREATE INDEX `snapshot_bad` ON `snapshots` (`shard_id`) WHERE bad <> '';

-- +goose Down
DROP INDEX `snapshot_bad`;
DELETE FROM schema_versions WHERE version = 18;
