-- Written by hand: the generated one copies whole tables, which foreign keys forbid within a transaction.

-- +goose Up
-- modify "shards" table
ALTER TABLE `shards` ADD COLUMN `policy_id` integer NOT NULL DEFAULT 0;
ALTER TABLE `shards` ADD COLUMN `policy_revision` integer NOT NULL DEFAULT 0;
ALTER TABLE `shards` ADD COLUMN `due` integer NOT NULL DEFAULT 0;
ALTER TABLE `shards` ADD COLUMN `deadline` integer NOT NULL DEFAULT 0;
CREATE INDEX `shard_due_policy_id` ON `shards` (`due`, `policy_id`);
CREATE TABLE `policies` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `name` text NOT NULL, `revision` integer NOT NULL DEFAULT 1, `labels` json NULL, `paused` bool NOT NULL DEFAULT false, `schedule` text NOT NULL, `time_zone` text NOT NULL DEFAULT '', `jitter` integer NOT NULL DEFAULT 0, `windows` json NULL, `recovery_point` integer NOT NULL DEFAULT 0, `retention` json NOT NULL, `selection` json NOT NULL);
CREATE UNIQUE INDEX `policies_name_key` ON `policies` (`name`);

-- +goose Down
DROP INDEX `policies_name_key`;
DROP TABLE `policies`;
DROP INDEX `shard_due_policy_id`;
ALTER TABLE `shards` DROP COLUMN `deadline`;
ALTER TABLE `shards` DROP COLUMN `due`;
ALTER TABLE `shards` DROP COLUMN `policy_revision`;
ALTER TABLE `shards` DROP COLUMN `policy_id`;
