-- How the content of files changes, and alarms about it. Binaries of version 2 can work with this schema: they judge no files, and an
-- alarm is a hold on the shard to them.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (29, 2);
ALTER TABLE snapshots ADD COLUMN files_judged bigint NOT NULL DEFAULT 0, ADD COLUMN files_renamed bigint NOT NULL DEFAULT 0,
    ADD COLUMN types_lost bigint NOT NULL DEFAULT 0, ADD COLUMN files_opaque bigint NOT NULL DEFAULT 0,
    ADD COLUMN churn_score bigint NOT NULL DEFAULT 0, ADD COLUMN alarm character varying NOT NULL DEFAULT '';
-- The snapshot whose alarm the hold is; NULL: it is a hold of an operator.
ALTER TABLE holds ADD COLUMN alarm uuid NULL;

-- +goose Down
ALTER TABLE holds DROP COLUMN alarm;
ALTER TABLE snapshots DROP COLUMN alarm, DROP COLUMN churn_score, DROP COLUMN files_opaque, DROP COLUMN types_lost,
    DROP COLUMN files_renamed, DROP COLUMN files_judged;
DELETE FROM schema_versions WHERE version = 29;
