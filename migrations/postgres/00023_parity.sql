-- Parity groups. Binaries of version 2 can work with this schema: their pruners delete members of
-- groups, which the next pass of a newer pruner makes again.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (23, 2);
CREATE TABLE parity_groups (
    id           uuid   NOT NULL PRIMARY KEY,
    state        text   NOT NULL, -- planned, valid or ended
    description  bytea  NOT NULL, -- as in parity object 0
    stored_bytes bigint NOT NULL  -- of the parity objects
);

-- +goose Down
DROP TABLE parity_groups;
DELETE FROM schema_versions WHERE version = 23;
