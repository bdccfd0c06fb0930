-- Snapshots that an operator has marked as bad, with the reason. Binaries of version 2 can work
-- with this schema: to them, all snapshots are good.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (4, 2);
ALTER TABLE `snapshots` ADD COLUMN `bad` text NOT NULL DEFAULT ('');

-- +goose Down
ALTER TABLE `snapshots` DROP COLUMN `bad`;
DELETE FROM schema_versions WHERE version = 4;
