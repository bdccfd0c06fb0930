-- How the content of files changes, and alarms about it. Binaries of version 11 can work with this schema: they judge no files, and an
-- alarm is a hold on the shard to them.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (29, 11);
ALTER TABLE `snapshots` ADD COLUMN `files_judged` integer NOT NULL DEFAULT (0);
ALTER TABLE `snapshots` ADD COLUMN `files_renamed` integer NOT NULL DEFAULT (0);
ALTER TABLE `snapshots` ADD COLUMN `types_lost` integer NOT NULL DEFAULT (0);
ALTER TABLE `snapshots` ADD COLUMN `files_opaque` integer NOT NULL DEFAULT (0);
ALTER TABLE `snapshots` ADD COLUMN `churn_score` integer NOT NULL DEFAULT (0);
ALTER TABLE `snapshots` ADD COLUMN `alarm` text NOT NULL DEFAULT ('');
-- The snapshot whose alarm the hold is; NULL: it is a hold of an operator.
ALTER TABLE holds ADD COLUMN alarm uuid NULL;

-- +goose Down
ALTER TABLE holds DROP COLUMN alarm;
ALTER TABLE `snapshots` DROP COLUMN `alarm`;
ALTER TABLE `snapshots` DROP COLUMN `churn_score`;
ALTER TABLE `snapshots` DROP COLUMN `files_opaque`;
ALTER TABLE `snapshots` DROP COLUMN `types_lost`;
ALTER TABLE `snapshots` DROP COLUMN `files_renamed`;
ALTER TABLE `snapshots` DROP COLUMN `files_judged`;
DELETE FROM schema_versions WHERE version = 29;
