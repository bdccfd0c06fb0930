-- The part of a filer's limits that the governor always leaves to it, by filer and by policy, in
-- percent; 0 is the default. Binaries of version 2 can work with this schema: they leave an eighth.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (5, 2);
ALTER TABLE `filers` ADD COLUMN `floor` integer NOT NULL DEFAULT (0);
ALTER TABLE `policies` ADD COLUMN `floor` integer NOT NULL DEFAULT (0);

-- +goose Down
ALTER TABLE `policies` DROP COLUMN `floor`;
ALTER TABLE `filers` DROP COLUMN `floor`;
DELETE FROM schema_versions WHERE version = 5;
