-- What waits for the pruner, what its last pass saw, and the numbers of catalogs. Binaries of version 2
-- can work with this schema: an old pruner deletes again what is deleted already, and old committers
-- take the number after that of the newest catalog.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (15, 11);
-- When the pack was condemned, in microseconds since 1970; 0: it is not, or an old pruner did it.
ALTER TABLE `packs` ADD COLUMN `condemned_at` integer NOT NULL DEFAULT (0);
-- The object of the pack is deleted. Its row remains until no batch can rely on the pack any more.
ALTER TABLE `packs` ADD COLUMN `gone` bool NOT NULL DEFAULT (false);
CREATE INDEX packs_condemned ON packs (condemned_at) WHERE condemned;
CREATE INDEX `snapshot_forgotten` ON `snapshots` (`shard_id`) WHERE forgotten IS NOT NULL;
-- Of a complete pass: the state of the index before it, and what it left. While the state is the same,
-- another pass would find nothing.
ALTER TABLE prunes ADD COLUMN state text NOT NULL DEFAULT ('');
ALTER TABLE prunes ADD COLUMN kept_bytes integer NOT NULL DEFAULT (0);
ALTER TABLE prunes ADD COLUMN unused_bytes integer NOT NULL DEFAULT (0);
-- The number of the last catalog that was, or was to be, written. Old catalogs are deleted, and their
-- numbers are not used again.
CREATE TABLE catalog_numbers (
    id   INTEGER PRIMARY KEY CHECK (id = 1),
    last INTEGER NOT NULL
);
INSERT INTO catalog_numbers (id, last) SELECT 1, coalesce(max(sequence), 0) FROM catalogs;

-- +goose Down
DROP TABLE catalog_numbers;
ALTER TABLE prunes DROP COLUMN unused_bytes;
ALTER TABLE prunes DROP COLUMN kept_bytes;
ALTER TABLE prunes DROP COLUMN state;
DROP INDEX `snapshot_forgotten`;
DROP INDEX packs_condemned;
ALTER TABLE `packs` DROP COLUMN `gone`;
ALTER TABLE `packs` DROP COLUMN `condemned_at`;
DELETE FROM schema_versions WHERE version = 15;
