-- +goose Up
-- create "filers" table
CREATE TABLE `filers` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `name` text NOT NULL);
-- create index "filers_name_key" to table: "filers"
CREATE UNIQUE INDEX `filers_name_key` ON `filers` (`name`);
-- create "packs" table
CREATE TABLE `packs` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `pack` uuid NOT NULL, `snapshot` uuid NOT NULL, `stored_bytes` integer NOT NULL, `chunks` integer NOT NULL, `condemned` bool NOT NULL DEFAULT (false));
-- create index "packs_pack_key" to table: "packs"
CREATE UNIQUE INDEX `packs_pack_key` ON `packs` (`pack`);
-- create "problems" table
CREATE TABLE `problems` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `path` blob NOT NULL, `op` text NOT NULL, `error` text NOT NULL, `snapshot_id` uuid NOT NULL, CONSTRAINT `problems_snapshots_problems` FOREIGN KEY (`snapshot_id`) REFERENCES `snapshots` (`id`) ON DELETE NO ACTION);
-- create index "problem_snapshot_id" to table: "problems"
CREATE INDEX `problem_snapshot_id` ON `problems` (`snapshot_id`);
-- create "read_batches" table
CREATE TABLE `read_batches` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `attempt` integer NOT NULL DEFAULT (0), `lease_until` datetime NOT NULL, `names` blob NOT NULL, `pages` blob NOT NULL, `snapshot_id` uuid NOT NULL, CONSTRAINT `read_batches_snapshots_batches` FOREIGN KEY (`snapshot_id`) REFERENCES `snapshots` (`id`) ON DELETE NO ACTION);
-- create index "readbatch_snapshot_id_id" to table: "read_batches"
CREATE INDEX `readbatch_snapshot_id_id` ON `read_batches` (`snapshot_id`, `id`);
-- create index "readbatch_lease_until" to table: "read_batches"
CREATE INDEX `readbatch_lease_until` ON `read_batches` (`lease_until`);
-- create "repositories" table
CREATE TABLE `repositories` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `repository` uuid NOT NULL, `version` integer NOT NULL, `created` datetime NOT NULL, `chunker` text NOT NULL, `codec` text NOT NULL, `recipients` json NOT NULL);
-- create "shards" table
CREATE TABLE `shards` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `name` text NOT NULL, `source` text NOT NULL, `last_number` integer NOT NULL DEFAULT (0), `filer_id` integer NOT NULL, CONSTRAINT `shards_filers_shards` FOREIGN KEY (`filer_id`) REFERENCES `filers` (`id`) ON DELETE NO ACTION);
-- create index "shard_filer_id_name" to table: "shards"
CREATE UNIQUE INDEX `shard_filer_id_name` ON `shards` (`filer_id`, `name`);
-- create "slice_parts" table
CREATE TABLE `slice_parts` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `snapshot_id` uuid NOT NULL, `task_id` integer NOT NULL, `attempt` integer NOT NULL, `part` integer NOT NULL, `result` blob NOT NULL);
-- create index "slicepart_task_id_attempt_part" to table: "slice_parts"
CREATE UNIQUE INDEX `slicepart_task_id_attempt_part` ON `slice_parts` (`task_id`, `attempt`, `part`);
-- create index "slicepart_snapshot_id" to table: "slice_parts"
CREATE INDEX `slicepart_snapshot_id` ON `slice_parts` (`snapshot_id`);
-- create "snapshots" table
CREATE TABLE `snapshots` (`id` uuid NOT NULL, `number` integer NOT NULL, `base` integer NOT NULL DEFAULT (0), `state` text NOT NULL, `reason` text NOT NULL DEFAULT (''), `started` datetime NOT NULL, `committed` datetime NULL, `selection` json NOT NULL, `allow_shrink` bool NOT NULL DEFAULT (false), `tags` json NULL, `segments` json NULL, `files` integer NOT NULL DEFAULT (0), `directories` integer NOT NULL DEFAULT (0), `bytes` integer NOT NULL DEFAULT (0), `files_new` integer NOT NULL DEFAULT (0), `files_changed` integer NOT NULL DEFAULT (0), `files_unchanged` integer NOT NULL DEFAULT (0), `stat_calls` integer NOT NULL DEFAULT (0), `new_bytes` integer NOT NULL DEFAULT (0), `stored_bytes` integer NOT NULL DEFAULT (0), `read_bytes` integer NOT NULL DEFAULT (0), `errors` integer NOT NULL DEFAULT (0), `problems_stored` integer NOT NULL DEFAULT (0), `tasks_announced` integer NOT NULL DEFAULT (0), `tasks_settled` integer NOT NULL DEFAULT (0), `batches_announced` integer NOT NULL DEFAULT (0), `batches_settled` integer NOT NULL DEFAULT (0), `walk_seconds` real NOT NULL DEFAULT (0), `read_seconds` real NOT NULL DEFAULT (0), `hash_seconds` real NOT NULL DEFAULT (0), `compress_seconds` real NOT NULL DEFAULT (0), `seal_seconds` real NOT NULL DEFAULT (0), `upload_seconds` real NOT NULL DEFAULT (0), `commit_seconds` real NOT NULL DEFAULT (0), `shard_id` integer NOT NULL, PRIMARY KEY (`id`), CONSTRAINT `snapshots_shards_snapshots` FOREIGN KEY (`shard_id`) REFERENCES `shards` (`id`) ON DELETE NO ACTION);
-- create index "snapshot_shard_id_number" to table: "snapshots"
CREATE UNIQUE INDEX `snapshot_shard_id_number` ON `snapshots` (`shard_id`, `number`);
-- create index "snapshot_running" to table: "snapshots"
CREATE UNIQUE INDEX `snapshot_running` ON `snapshots` (`shard_id`) WHERE state = 'running';
-- create "walk_tasks" table
CREATE TABLE `walk_tasks` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `attempt` integer NOT NULL DEFAULT (0), `generation` integer NOT NULL, `lease_until` datetime NOT NULL, `directories` blob NOT NULL, `snapshot_id` uuid NOT NULL, CONSTRAINT `walk_tasks_snapshots_tasks` FOREIGN KEY (`snapshot_id`) REFERENCES `snapshots` (`id`) ON DELETE NO ACTION);
-- create index "walktask_snapshot_id_id" to table: "walk_tasks"
CREATE INDEX `walktask_snapshot_id_id` ON `walk_tasks` (`snapshot_id`, `id`);
-- create index "walktask_lease_until" to table: "walk_tasks"
CREATE INDEX `walktask_lease_until` ON `walk_tasks` (`lease_until`);

-- +goose Down
-- reverse: create index "walktask_lease_until" to table: "walk_tasks"
DROP INDEX `walktask_lease_until`;
-- reverse: create index "walktask_snapshot_id_id" to table: "walk_tasks"
DROP INDEX `walktask_snapshot_id_id`;
-- reverse: create "walk_tasks" table
DROP TABLE `walk_tasks`;
-- reverse: create index "snapshot_running" to table: "snapshots"
DROP INDEX `snapshot_running`;
-- reverse: create index "snapshot_shard_id_number" to table: "snapshots"
DROP INDEX `snapshot_shard_id_number`;
-- reverse: create "snapshots" table
DROP TABLE `snapshots`;
-- reverse: create index "slicepart_snapshot_id" to table: "slice_parts"
DROP INDEX `slicepart_snapshot_id`;
-- reverse: create index "slicepart_task_id_attempt_part" to table: "slice_parts"
DROP INDEX `slicepart_task_id_attempt_part`;
-- reverse: create "slice_parts" table
DROP TABLE `slice_parts`;
-- reverse: create index "shard_filer_id_name" to table: "shards"
DROP INDEX `shard_filer_id_name`;
-- reverse: create "shards" table
DROP TABLE `shards`;
-- reverse: create "repositories" table
DROP TABLE `repositories`;
-- reverse: create index "readbatch_lease_until" to table: "read_batches"
DROP INDEX `readbatch_lease_until`;
-- reverse: create index "readbatch_snapshot_id_id" to table: "read_batches"
DROP INDEX `readbatch_snapshot_id_id`;
-- reverse: create "read_batches" table
DROP TABLE `read_batches`;
-- reverse: create index "problem_snapshot_id" to table: "problems"
DROP INDEX `problem_snapshot_id`;
-- reverse: create "problems" table
DROP TABLE `problems`;
-- reverse: create index "packs_pack_key" to table: "packs"
DROP INDEX `packs_pack_key`;
-- reverse: create "packs" table
DROP TABLE `packs`;
-- reverse: create index "filers_name_key" to table: "filers"
DROP INDEX `filers_name_key`;
-- reverse: create "filers" table
DROP TABLE `filers`;
