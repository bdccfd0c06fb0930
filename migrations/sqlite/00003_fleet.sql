-- Written by hand: the generated one copies whole tables, which foreign keys forbid within a transaction.

-- +goose Up
-- modify "filers" table
ALTER TABLE `filers` ADD COLUMN `site` text NOT NULL DEFAULT 'default';
ALTER TABLE `filers` ADD COLUMN `walk_tasks` integer NOT NULL DEFAULT 0;
ALTER TABLE `filers` ADD COLUMN `read_batches` integer NOT NULL DEFAULT 0;
ALTER TABLE `filers` ADD COLUMN `read_bytes` integer NOT NULL DEFAULT 0;
ALTER TABLE `filers` ADD COLUMN `compare` integer NOT NULL DEFAULT 0;
ALTER TABLE `filers` ADD COLUMN `selection` json NULL;
ALTER TABLE `filers` ADD COLUMN `labels` json NULL;
ALTER TABLE `filers` ADD COLUMN `retired` bool NOT NULL DEFAULT false;
ALTER TABLE `filers` ADD COLUMN `walk_slots` integer NOT NULL DEFAULT 0;
ALTER TABLE `filers` ADD COLUMN `read_slots` integer NOT NULL DEFAULT 0;
ALTER TABLE `filers` ADD COLUMN `walk_latency` integer NOT NULL DEFAULT 0;
ALTER TABLE `filers` ADD COLUMN `walk_idle` integer NOT NULL DEFAULT 0;
ALTER TABLE `filers` ADD COLUMN `read_latency` integer NOT NULL DEFAULT 0;
ALTER TABLE `filers` ADD COLUMN `read_idle` integer NOT NULL DEFAULT 0;
-- modify "read_batches" table
ALTER TABLE `read_batches` ADD COLUMN `filer_id` integer NOT NULL DEFAULT 0;
ALTER TABLE `read_batches` ADD COLUMN `worker` text NOT NULL DEFAULT '';
ALTER TABLE `read_batches` ADD COLUMN `path` blob NULL;
ALTER TABLE `read_batches` ADD COLUMN `stalled` datetime NULL;
-- modify "shards" table
ALTER TABLE `shards` ADD COLUMN `pattern` text NOT NULL DEFAULT '';
ALTER TABLE `shards` ADD COLUMN `selection` json NULL;
ALTER TABLE `shards` ADD COLUMN `retired` bool NOT NULL DEFAULT false;
ALTER TABLE `shards` ADD COLUMN `last_good` uuid NULL;
ALTER TABLE `shards` ADD COLUMN `last_good_number` integer NOT NULL DEFAULT 0;
ALTER TABLE `shards` ADD COLUMN `last_good_started` datetime NULL;
ALTER TABLE `shards` ADD COLUMN `last_good_files` integer NOT NULL DEFAULT 0;
ALTER TABLE `shards` ADD COLUMN `last_good_bytes` integer NOT NULL DEFAULT 0;
-- modify "snapshots" table
ALTER TABLE `snapshots` ADD COLUMN `filer_id` integer NOT NULL DEFAULT 0;
ALTER TABLE `snapshots` ADD COLUMN `source` text NOT NULL DEFAULT '';
ALTER TABLE `snapshots` ADD COLUMN `cancel` text NOT NULL DEFAULT '';
-- modify "walk_tasks" table
ALTER TABLE `walk_tasks` ADD COLUMN `filer_id` integer NOT NULL DEFAULT 0;
ALTER TABLE `walk_tasks` ADD COLUMN `worker` text NOT NULL DEFAULT '';
ALTER TABLE `walk_tasks` ADD COLUMN `path` blob NULL;
ALTER TABLE `walk_tasks` ADD COLUMN `stalled` datetime NULL;
-- what rows have from before: their filer, what was read, and each shard's newest committed snapshot
UPDATE snapshots AS s SET filer_id = h.filer_id, source = h.source FROM shards AS h WHERE h.id = s.shard_id;
UPDATE walk_tasks AS w SET filer_id = s.filer_id FROM snapshots AS s WHERE s.id = w.snapshot_id;
UPDATE read_batches AS w SET filer_id = s.filer_id FROM snapshots AS s WHERE s.id = w.snapshot_id;
UPDATE shards AS h SET last_good = s.id, last_good_number = s.number, last_good_started = s.started, last_good_files = s.files, last_good_bytes = s.bytes
FROM snapshots AS s WHERE s.shard_id = h.id AND s.state = 'committed'
AND s.number = (SELECT max(n.number) FROM snapshots AS n WHERE n.shard_id = h.id AND n.state = 'committed');
CREATE INDEX `readbatch_filer_id_id` ON `read_batches` (`filer_id`, `id`);
CREATE INDEX `snapshot_cancelled` ON `snapshots` (`filer_id`) WHERE state = 'running' AND cancel <> '';
CREATE INDEX `snapshot_started_shard_id_number_filer_id` ON `snapshots` (`started`, `shard_id`, `number`, `filer_id`);
CREATE INDEX `snapshot_filer_id_started_shard_id_number` ON `snapshots` (`filer_id`, `started`, `shard_id`, `number`);
CREATE INDEX `snapshot_shard_id_started_number` ON `snapshots` (`shard_id`, `started`, `number`);
CREATE INDEX `snapshot_state_started_shard_id_number` ON `snapshots` (`state`, `started`, `shard_id`, `number`);
CREATE INDEX `walktask_filer_id_id` ON `walk_tasks` (`filer_id`, `id`);
CREATE TABLE `leaders` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `role` text NOT NULL, `holder` text NOT NULL, `epoch` integer NOT NULL, `until` integer NOT NULL);
CREATE UNIQUE INDEX `leaders_role_key` ON `leaders` (`role`);

-- +goose Down
DROP INDEX `leaders_role_key`;
DROP TABLE `leaders`;
DROP INDEX `walktask_filer_id_id`;
DROP INDEX `snapshot_state_started_shard_id_number`;
DROP INDEX `snapshot_shard_id_started_number`;
DROP INDEX `snapshot_filer_id_started_shard_id_number`;
DROP INDEX `snapshot_started_shard_id_number_filer_id`;
DROP INDEX `snapshot_cancelled`;
DROP INDEX `readbatch_filer_id_id`;
ALTER TABLE `walk_tasks` DROP COLUMN `stalled`;
ALTER TABLE `walk_tasks` DROP COLUMN `path`;
ALTER TABLE `walk_tasks` DROP COLUMN `worker`;
ALTER TABLE `walk_tasks` DROP COLUMN `filer_id`;
ALTER TABLE `snapshots` DROP COLUMN `cancel`;
ALTER TABLE `snapshots` DROP COLUMN `source`;
ALTER TABLE `snapshots` DROP COLUMN `filer_id`;
ALTER TABLE `shards` DROP COLUMN `last_good_bytes`;
ALTER TABLE `shards` DROP COLUMN `last_good_files`;
ALTER TABLE `shards` DROP COLUMN `last_good_started`;
ALTER TABLE `shards` DROP COLUMN `last_good_number`;
ALTER TABLE `shards` DROP COLUMN `last_good`;
ALTER TABLE `shards` DROP COLUMN `retired`;
ALTER TABLE `shards` DROP COLUMN `selection`;
ALTER TABLE `shards` DROP COLUMN `pattern`;
ALTER TABLE `read_batches` DROP COLUMN `stalled`;
ALTER TABLE `read_batches` DROP COLUMN `path`;
ALTER TABLE `read_batches` DROP COLUMN `worker`;
ALTER TABLE `read_batches` DROP COLUMN `filer_id`;
ALTER TABLE `filers` DROP COLUMN `read_idle`;
ALTER TABLE `filers` DROP COLUMN `read_latency`;
ALTER TABLE `filers` DROP COLUMN `walk_idle`;
ALTER TABLE `filers` DROP COLUMN `walk_latency`;
ALTER TABLE `filers` DROP COLUMN `read_slots`;
ALTER TABLE `filers` DROP COLUMN `walk_slots`;
ALTER TABLE `filers` DROP COLUMN `retired`;
ALTER TABLE `filers` DROP COLUMN `labels`;
ALTER TABLE `filers` DROP COLUMN `selection`;
ALTER TABLE `filers` DROP COLUMN `compare`;
ALTER TABLE `filers` DROP COLUMN `read_bytes`;
ALTER TABLE `filers` DROP COLUMN `read_batches`;
ALTER TABLE `filers` DROP COLUMN `walk_tasks`;
ALTER TABLE `filers` DROP COLUMN `site`;
