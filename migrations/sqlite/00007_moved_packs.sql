-- Packs that were moved: copies without unneeded frames, in new objects. Each has a row of its own, so
-- that a batch that relies on the pack as it was is refused. Binaries of version 2 can work with this
-- schema, except that their restores refuse such packs as damaged.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (7, 2);
-- The id in the pack's header, if it is not that of the row.
ALTER TABLE `packs` ADD COLUMN `sealed` uuid NULL;

-- +goose Down
ALTER TABLE `packs` DROP COLUMN `sealed`;
DELETE FROM schema_versions WHERE version = 7;
