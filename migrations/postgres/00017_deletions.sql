-- How an index that is older than its store is noticed. Binaries of version 2 can work with this schema.
-- New pruners wait for new committers.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (17, 2);
-- The number of the last deletion that a pruner has announced, and in catalogs that of the last one that
-- had been announced before the catalog was written. Nothing is deleted before a catalog follows.
ALTER TABLE catalog_numbers ADD COLUMN deletions bigint NOT NULL DEFAULT 0;
ALTER TABLE catalogs ADD COLUMN deletions bigint NOT NULL DEFAULT 0;
-- Snapshots of which the store has a record, and which this index lacks for good.
CREATE TABLE lost_snapshots (
    id uuid PRIMARY KEY
);

-- +goose Down
DROP TABLE lost_snapshots;
ALTER TABLE catalogs DROP COLUMN deletions;
ALTER TABLE catalog_numbers DROP COLUMN deletions;
DELETE FROM schema_versions WHERE version = 17;
