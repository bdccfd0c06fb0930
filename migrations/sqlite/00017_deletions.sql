-- How an index that is older than its store is noticed. Binaries of version 11 can work with this schema.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (17, 11);
-- The number of the last deletion that a pruner has announced, and in catalogs that of the last one that
-- had been announced before the catalog was written. Nothing is deleted before a catalog follows.
ALTER TABLE catalog_numbers ADD COLUMN deletions INTEGER NOT NULL DEFAULT (0);
ALTER TABLE catalogs ADD COLUMN deletions INTEGER NOT NULL DEFAULT (0);

-- +goose Down
ALTER TABLE catalogs DROP COLUMN deletions;
ALTER TABLE catalog_numbers DROP COLUMN deletions;
DELETE FROM schema_versions WHERE version = 17;
