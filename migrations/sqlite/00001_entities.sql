-- +goose Up
-- create "policies" table
CREATE TABLE `policies` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `name` text NOT NULL, `revision` integer NOT NULL DEFAULT (1), `labels` json NULL, `paused` bool NOT NULL DEFAULT (false), `schedule` text NOT NULL, `time_zone` text NOT NULL DEFAULT (''), `jitter` integer NOT NULL DEFAULT (0), `windows` json NULL, `recovery_point` integer NOT NULL DEFAULT (0), `retention` json NOT NULL, `selection` json NOT NULL);
-- create index "policies_name_key" to table: "policies"
CREATE UNIQUE INDEX `policies_name_key` ON `policies` (`name`);
-- create "filers" table
CREATE TABLE `filers` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `name` text NOT NULL, `site` text NOT NULL DEFAULT ('default'), `walk_tasks` integer NOT NULL DEFAULT (0), `read_batches` integer NOT NULL DEFAULT (0), `read_bytes` integer NOT NULL DEFAULT (0), `compare` integer NOT NULL DEFAULT (0), `selection` json NULL, `labels` json NULL, `retired` bool NOT NULL DEFAULT (false), `walk_slots` integer NOT NULL DEFAULT (0), `read_slots` integer NOT NULL DEFAULT (0), `walk_latency` integer NOT NULL DEFAULT (0), `walk_idle` integer NOT NULL DEFAULT (0), `read_latency` integer NOT NULL DEFAULT (0), `read_idle` integer NOT NULL DEFAULT (0));
-- create index "filers_name_key" to table: "filers"
CREATE UNIQUE INDEX `filers_name_key` ON `filers` (`name`);
-- create "leaders" table
CREATE TABLE `leaders` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `role` text NOT NULL, `holder` text NOT NULL, `epoch` integer NOT NULL, `until` integer NOT NULL);
-- create index "leaders_role_key" to table: "leaders"
CREATE UNIQUE INDEX `leaders_role_key` ON `leaders` (`role`);
-- create "packs" table
CREATE TABLE `packs` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `pack` uuid NOT NULL, `snapshot` uuid NOT NULL, `object` uuid NOT NULL, `object_offset` integer NOT NULL DEFAULT (0), `stored_bytes` integer NOT NULL, `frame_bytes` blob NOT NULL, `chunks` integer NOT NULL, `condemned` bool NOT NULL DEFAULT (false));
-- create index "packs_pack_key" to table: "packs"
CREATE UNIQUE INDEX `packs_pack_key` ON `packs` (`pack`);
-- create "problems" table
CREATE TABLE `problems` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `path` blob NOT NULL, `op` text NOT NULL, `error` text NOT NULL, `snapshot_id` uuid NOT NULL, CONSTRAINT `problems_snapshots_problems` FOREIGN KEY (`snapshot_id`) REFERENCES `snapshots` (`id`) ON DELETE NO ACTION);
-- create index "problem_snapshot_id" to table: "problems"
CREATE INDEX `problem_snapshot_id` ON `problems` (`snapshot_id`);
-- create "read_batches" table
CREATE TABLE `read_batches` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `attempt` integer NOT NULL DEFAULT (0), `lease_until` datetime NOT NULL, `names` blob NOT NULL, `pages` blob NOT NULL, `filer_id` integer NOT NULL DEFAULT (0), `worker` text NOT NULL DEFAULT (''), `path` blob NULL, `stalled` datetime NULL, `snapshot_id` uuid NOT NULL, CONSTRAINT `read_batches_snapshots_batches` FOREIGN KEY (`snapshot_id`) REFERENCES `snapshots` (`id`) ON DELETE NO ACTION);
-- create index "readbatch_snapshot_id_id" to table: "read_batches"
CREATE INDEX `readbatch_snapshot_id_id` ON `read_batches` (`snapshot_id`, `id`);
-- create index "readbatch_filer_id_id" to table: "read_batches"
CREATE INDEX `readbatch_filer_id_id` ON `read_batches` (`filer_id`, `id`);
-- create index "readbatch_lease_until" to table: "read_batches"
CREATE INDEX `readbatch_lease_until` ON `read_batches` (`lease_until`);
-- create "repositories" table
CREATE TABLE `repositories` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `repository` uuid NOT NULL, `version` integer NOT NULL, `created` datetime NOT NULL, `chunker` text NOT NULL, `codec` text NOT NULL, `recipients` json NOT NULL, `signer` blob NOT NULL);
-- create "shards" table
CREATE TABLE `shards` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `shard_key` uuid NOT NULL, `name` text NOT NULL, `source` text NOT NULL, `last_number` integer NOT NULL DEFAULT (0), `pattern` text NOT NULL DEFAULT (''), `selection` json NULL, `retired` bool NOT NULL DEFAULT (false), `last_good` uuid NULL, `last_good_number` integer NOT NULL DEFAULT (0), `last_good_started` datetime NULL, `last_good_files` integer NOT NULL DEFAULT (0), `last_good_bytes` integer NOT NULL DEFAULT (0), `interrupted` bool NOT NULL DEFAULT (false), `checkpoint_bytes` integer NOT NULL DEFAULT (0), `segment_bytes` integer NOT NULL DEFAULT (0), `policy_id` integer NOT NULL DEFAULT (0), `policy_revision` integer NOT NULL DEFAULT (0), `due` integer NOT NULL DEFAULT (0), `deadline` integer NOT NULL DEFAULT (0), `filer_id` integer NOT NULL, CONSTRAINT `shards_filers_shards` FOREIGN KEY (`filer_id`) REFERENCES `filers` (`id`) ON DELETE NO ACTION);
-- create index "shards_shard_key_key" to table: "shards"
CREATE UNIQUE INDEX `shards_shard_key_key` ON `shards` (`shard_key`);
-- create index "shard_filer_id_name" to table: "shards"
CREATE UNIQUE INDEX `shard_filer_id_name` ON `shards` (`filer_id`, `name`);
-- create index "shard_due_policy_id" to table: "shards"
CREATE INDEX `shard_due_policy_id` ON `shards` (`due`, `policy_id`);
-- create "slice_parts" table
CREATE TABLE `slice_parts` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `snapshot_id` uuid NOT NULL, `task_id` integer NOT NULL, `attempt` integer NOT NULL, `part` integer NOT NULL, `result` blob NOT NULL);
-- create index "slicepart_task_id_attempt_part" to table: "slice_parts"
CREATE UNIQUE INDEX `slicepart_task_id_attempt_part` ON `slice_parts` (`task_id`, `attempt`, `part`);
-- create index "slicepart_snapshot_id" to table: "slice_parts"
CREATE INDEX `slicepart_snapshot_id` ON `slice_parts` (`snapshot_id`);
-- create "snapshots" table
CREATE TABLE `snapshots` (`id` uuid NOT NULL, `filer_id` integer NOT NULL DEFAULT (0), `number` integer NOT NULL, `base` integer NOT NULL DEFAULT (0), `base_id` uuid NULL, `state` text NOT NULL, `reason` text NOT NULL DEFAULT (''), `started` datetime NOT NULL, `sort_time` datetime NOT NULL, `committed` datetime NULL, `source` text NOT NULL DEFAULT (''), `root` text NOT NULL DEFAULT (''), `compare` integer NOT NULL DEFAULT (0), `cancel` text NOT NULL DEFAULT (''), `selection` json NOT NULL, `allow_shrink` bool NOT NULL DEFAULT (false), `new_root` bool NOT NULL DEFAULT (false), `tags` json NULL, `segment` uuid NULL, `segment_parts` integer NOT NULL DEFAULT (0), `checkpoint` bool NOT NULL DEFAULT (false), `pages` integer NOT NULL DEFAULT (0), `pages_sum` blob NULL, `ended` datetime NULL, `recorded` bool NOT NULL DEFAULT (false), `committer` text NOT NULL DEFAULT (''), `commit_until` integer NOT NULL DEFAULT (0), `files` integer NOT NULL DEFAULT (0), `directories` integer NOT NULL DEFAULT (0), `bytes` integer NOT NULL DEFAULT (0), `files_new` integer NOT NULL DEFAULT (0), `files_changed` integer NOT NULL DEFAULT (0), `files_unchanged` integer NOT NULL DEFAULT (0), `stat_calls` integer NOT NULL DEFAULT (0), `new_bytes` integer NOT NULL DEFAULT (0), `stored_bytes` integer NOT NULL DEFAULT (0), `read_bytes` integer NOT NULL DEFAULT (0), `errors` integer NOT NULL DEFAULT (0), `vanished` integer NOT NULL DEFAULT (0), `carried` integer NOT NULL DEFAULT (0), `torn` integer NOT NULL DEFAULT (0), `problems_stored` integer NOT NULL DEFAULT (0), `tasks_announced` integer NOT NULL DEFAULT (0), `tasks_settled` integer NOT NULL DEFAULT (0), `batches_announced` integer NOT NULL DEFAULT (0), `batches_settled` integer NOT NULL DEFAULT (0), `walk_seconds` real NOT NULL DEFAULT (0), `read_seconds` real NOT NULL DEFAULT (0), `hash_seconds` real NOT NULL DEFAULT (0), `compress_seconds` real NOT NULL DEFAULT (0), `seal_seconds` real NOT NULL DEFAULT (0), `upload_seconds` real NOT NULL DEFAULT (0), `commit_seconds` real NOT NULL DEFAULT (0), `shard_id` integer NOT NULL, PRIMARY KEY (`id`), CONSTRAINT `snapshots_shards_snapshots` FOREIGN KEY (`shard_id`) REFERENCES `shards` (`id`) ON DELETE NO ACTION);
-- create index "snapshot_shard_id_number" to table: "snapshots"
CREATE UNIQUE INDEX `snapshot_shard_id_number` ON `snapshots` (`shard_id`, `number`);
-- create index "snapshot_running" to table: "snapshots"
CREATE UNIQUE INDEX `snapshot_running` ON `snapshots` (`shard_id`) WHERE state = 'running';
-- create index "snapshot_cancelled" to table: "snapshots"
CREATE INDEX `snapshot_cancelled` ON `snapshots` (`filer_id`) WHERE state = 'running' AND cancel <> '';
-- create index "snapshot_unrecorded" to table: "snapshots"
CREATE INDEX `snapshot_unrecorded` ON `snapshots` (`sort_time`, `shard_id`, `number`) WHERE ended IS NOT NULL AND NOT recorded;
-- create index "snapshot_sort_time_shard_id_number_filer_id" to table: "snapshots"
CREATE INDEX `snapshot_sort_time_shard_id_number_filer_id` ON `snapshots` (`sort_time`, `shard_id`, `number`, `filer_id`);
-- create index "snapshot_filer_id_sort_time_shard_id_number" to table: "snapshots"
CREATE INDEX `snapshot_filer_id_sort_time_shard_id_number` ON `snapshots` (`filer_id`, `sort_time`, `shard_id`, `number`);
-- create index "snapshot_state_sort_time_shard_id_number" to table: "snapshots"
CREATE INDEX `snapshot_state_sort_time_shard_id_number` ON `snapshots` (`state`, `sort_time`, `shard_id`, `number`);
-- create "walk_tasks" table
CREATE TABLE `walk_tasks` (`id` integer NOT NULL PRIMARY KEY AUTOINCREMENT, `attempt` integer NOT NULL DEFAULT (0), `generation` integer NOT NULL, `lease_until` datetime NOT NULL, `directories` blob NOT NULL, `filer_id` integer NOT NULL DEFAULT (0), `worker` text NOT NULL DEFAULT (''), `path` blob NULL, `stalled` datetime NULL, `snapshot_id` uuid NOT NULL, CONSTRAINT `walk_tasks_snapshots_tasks` FOREIGN KEY (`snapshot_id`) REFERENCES `snapshots` (`id`) ON DELETE NO ACTION);
-- create index "walktask_snapshot_id_id" to table: "walk_tasks"
CREATE INDEX `walktask_snapshot_id_id` ON `walk_tasks` (`snapshot_id`, `id`);
-- create index "walktask_filer_id_id" to table: "walk_tasks"
CREATE INDEX `walktask_filer_id_id` ON `walk_tasks` (`filer_id`, `id`);
-- create index "walktask_lease_until" to table: "walk_tasks"
CREATE INDEX `walktask_lease_until` ON `walk_tasks` (`lease_until`);

-- The binaries that can work with each version of the schema. Package migrations documents it.
CREATE TABLE schema_versions (version INTEGER PRIMARY KEY, oldest INTEGER NOT NULL);
INSERT INTO schema_versions (version, oldest) VALUES (1, 1);

-- +goose Down
DROP TABLE schema_versions;
-- reverse: create index "walktask_lease_until" to table: "walk_tasks"
DROP INDEX `walktask_lease_until`;
-- reverse: create index "walktask_filer_id_id" to table: "walk_tasks"
DROP INDEX `walktask_filer_id_id`;
-- reverse: create index "walktask_snapshot_id_id" to table: "walk_tasks"
DROP INDEX `walktask_snapshot_id_id`;
-- reverse: create "walk_tasks" table
DROP TABLE `walk_tasks`;
-- reverse: create index "snapshot_state_sort_time_shard_id_number" to table: "snapshots"
DROP INDEX `snapshot_state_sort_time_shard_id_number`;
-- reverse: create index "snapshot_filer_id_sort_time_shard_id_number" to table: "snapshots"
DROP INDEX `snapshot_filer_id_sort_time_shard_id_number`;
-- reverse: create index "snapshot_sort_time_shard_id_number_filer_id" to table: "snapshots"
DROP INDEX `snapshot_sort_time_shard_id_number_filer_id`;
-- reverse: create index "snapshot_unrecorded" to table: "snapshots"
DROP INDEX `snapshot_unrecorded`;
-- reverse: create index "snapshot_cancelled" to table: "snapshots"
DROP INDEX `snapshot_cancelled`;
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
-- reverse: create index "shard_due_policy_id" to table: "shards"
DROP INDEX `shard_due_policy_id`;
-- reverse: create index "shard_filer_id_name" to table: "shards"
DROP INDEX `shard_filer_id_name`;
-- reverse: create index "shards_shard_key_key" to table: "shards"
DROP INDEX `shards_shard_key_key`;
-- reverse: create "shards" table
DROP TABLE `shards`;
-- reverse: create "repositories" table
DROP TABLE `repositories`;
-- reverse: create index "readbatch_lease_until" to table: "read_batches"
DROP INDEX `readbatch_lease_until`;
-- reverse: create index "readbatch_filer_id_id" to table: "read_batches"
DROP INDEX `readbatch_filer_id_id`;
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
-- reverse: create index "leaders_role_key" to table: "leaders"
DROP INDEX `leaders_role_key`;
-- reverse: create "leaders" table
DROP TABLE `leaders`;
-- reverse: create index "filers_name_key" to table: "filers"
DROP INDEX `filers_name_key`;
-- reverse: create "filers" table
DROP TABLE `filers`;
-- reverse: create index "policies_name_key" to table: "policies"
DROP INDEX `policies_name_key`;
-- reverse: create "policies" table
DROP TABLE `policies`;
