-- The sweep of the store's list for objects that no row names. Binaries of version 2 can work with
-- this schema: they do not sweep.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (9, 2);
-- Where the sweep goes on: one row at most.
CREATE TABLE sweep (
    id      bigint PRIMARY KEY CHECK (id = 1),
    section bigint NOT NULL -- the next one
);
-- The objects of packs that were moved. The object of any other pack has the pack's id.
CREATE INDEX packs_moved ON packs (object) WHERE sealed IS NOT NULL;

-- +goose Down
DROP INDEX packs_moved;
DROP TABLE sweep;
DELETE FROM schema_versions WHERE version = 9;
