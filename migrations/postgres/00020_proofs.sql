-- What scrubbing proves. Binaries of version 2 can work with this schema: packs that they register
-- have no checksums, and scrubbing notes those that it reads first.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (20, 2);
-- The checksums of a pack's frames and table (pack.Sums); empty: they are not known.
ALTER TABLE packs ADD COLUMN sums bytea NOT NULL DEFAULT ''::bytea;
-- The checksums are not those of what was sealed, but of what a scrub has read first.
ALTER TABLE packs ADD COLUMN adopted boolean NOT NULL DEFAULT false;
-- When the pack was registered, or its checksums were adopted. Times are in microseconds since 1970.
-- Those of packs that exist are unknown: the time of this migration.
ALTER TABLE packs ADD COLUMN noted bigint NOT NULL DEFAULT (extract(epoch FROM now()) * 1000000)::bigint;
-- When all of it was last read, and was what its checksums say; 0: never.
ALTER TABLE packs ADD COLUMN proven bigint NOT NULL DEFAULT 0;
-- When a proof last failed, and why; 0: the last one did not.
ALTER TABLE packs ADD COLUMN damaged bigint NOT NULL DEFAULT 0;
ALTER TABLE packs ADD COLUMN damage text NOT NULL DEFAULT '';
-- Within which time all packs are proven, and what that may read from the store a day; 0: no limit.
CREATE TABLE scrub (
    id           int    PRIMARY KEY CHECK (id = 1),
    within       bigint NOT NULL DEFAULT 2592000, -- seconds
    bytes        bigint NOT NULL DEFAULT 0,
    requests     bigint NOT NULL DEFAULT 0,
    day_began    bigint NOT NULL DEFAULT 0,
    day_bytes    bigint NOT NULL DEFAULT 0, -- read since then
    day_requests bigint NOT NULL DEFAULT 0
);
INSERT INTO scrub (id) VALUES (1);

-- +goose Down
DROP TABLE scrub;
ALTER TABLE packs DROP COLUMN damage;
ALTER TABLE packs DROP COLUMN damaged;
ALTER TABLE packs DROP COLUMN proven;
ALTER TABLE packs DROP COLUMN noted;
ALTER TABLE packs DROP COLUMN adopted;
ALTER TABLE packs DROP COLUMN sums;
DELETE FROM schema_versions WHERE version = 20;
